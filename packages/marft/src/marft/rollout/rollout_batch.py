"""Episode batches for training steps: selection of tasks, attempts, and forks for credit assignment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from marft.agents.game import Attempt
from marft.common.seeds import derive_seed
from marft.common.types import Episode, Task
from marft.config.run import RunSettings
from marft.envs.tasks import check_step_limit, read_tasks
from marft.rewards.groups import EQUAL_TOLERANCE, group_indices
from marft.rewards.shaping import length_limits, local_rewards, mix_rewards, remove_shaping, rewards_for_credit
from marft.rewards.terms import unique_names
from marft.rollout.fork_plans import (
    CandidateTree,
    ForkContext,
    PlayFunction,
    get_fork_plan,
    resampled_action,
    step_score,
)
from marft.rollout.runner import EpisodeCallback, RolloutRunner
from marft.rollout.task_sampler import NO_EXCLUDED, TaskSampler
from marft.runs.state import CurriculumState, State


@dataclass(frozen=True, slots=True, eq=False)
class RolloutBatch:
    """Episodes of one training step.

    Args:
        episodes: attempts of the step, sampled by the policies without forks.
        training_episodes: episodes to train on: scored attempts and forks, including episodes from the world model.
        recorded: all episodes played in the real environment.
        tasks_drawn: number of draws consumed so far, which is where the next step continues.
        metrics: metrics of the rollout.
        next_draw: number of the first draw not started yet.
        imagined: episodes played in the world model.
    """

    episodes: list[Episode]
    training_episodes: list[Episode]
    recorded: list[Episode]
    tasks_drawn: int
    metrics: dict[str, float]
    next_draw: int = 0
    imagined: Sequence[Episode] = ()

    def extend(self, repeats: Sequence[RolloutBatch]) -> RolloutBatch:
        """Return the batch with the episodes of repetitions of the step; the draws stay."""
        batches = (self, *repeats)
        return replace(
            self,
            episodes=[episode for batch in batches for episode in batch.episodes],
            training_episodes=[episode for batch in batches for episode in batch.training_episodes],
            recorded=[episode for batch in batches for episode in batch.recorded],
        )


def collect_rollouts(
    rollouts: RolloutRunner,
    tasks: Sequence[Task],
    state: State,
    on_done: EpisodeCallback,
    assign_policies: Callable[[Sequence[Attempt]], Sequence[Attempt]] = lambda attempts: attempts,
    repeat: int = 0,
) -> RolloutBatch:
    """Play the episodes for a training step.

    Args:
        rollouts: runner for the episodes.
        tasks: training tasks.
        state: progress of the run before the step: its number, the draws of earlier steps, and the curriculum.
        on_done: callback for each finished attempt.
        assign_policies: function that replaces the policies of attempts; by default agents keep their own policies.
        repeat: how often the step's tasks were played before, which gives the attempts streams of their own.
    """
    run, sampler, draw_count = rollouts.run, TaskSampler.from_tasks(rollouts.run, tasks), state.tasks_drawn
    rounds = run.algorithm.dynamic_sampling
    episodes, training_episodes, recorded, usable = list[Episode](), list[Episode](), list[Episode](), list[Episode]()
    groups = discarded = 0  # groups for training; groups with equal rewards
    for _ in range(rounds + 1):
        task_count = run.rollout.tasks_per_step - groups
        if not task_count:
            break
        drawn, draw_count = sampler.draw(draw_count, task_count, rollouts.excluded_tasks, state.curriculum)
        attempts = _build_attempts(run, state.step, drawn, repeat)
        new, all_episodes = play_with_forks(run, rollouts.play, assign_policies(attempts), on_done)
        episodes += new
        recorded += all_episodes
        scored = [episode for episode in all_episodes if episode.is_scored]
        usable = scored or usable
        draw_groups = group_by_draw(scored, attempts)
        selected = [group for group in draw_groups if rewards_vary(group, run)] if rounds else draw_groups
        groups, discarded = groups + len(selected), discarded + len(draw_groups) - len(selected)
        selected_ids = {id(episode) for group in selected for episode in group}
        training_episodes += [episode for episode in scored if id(episode) in selected_ids]
    metrics = ({"groups_discarded": float(discarded)} if rounds else {}) | fork_metrics(recorded)
    return RolloutBatch(
        episodes, training_episodes or first_attempts(usable), recorded, draw_count, metrics, draw_count
    )


def first_attempts(episodes: Sequence[Episode]) -> list[Episode]:
    """Return one attempt per task, for a step with equal rewards within every group.

    A single attempt has nothing to be compared with. Several attempts would still differ in shaping terms and prices.
    """
    first = [group[0] for group in group_indices([episode.task.id for episode in episodes])]
    return [episodes[index] for index in first]


def fork_metrics(recorded: Sequence[Episode]) -> dict[str, float]:
    """Return the number of forks and of failed forks; empty without forks."""
    forks = [episode for episode in recorded if episode.fork is not None]
    failed = float(sum(not episode.is_scored for episode in forks))
    return {"forks": float(len(forks)), "forks_failed": failed} if forks else {}


def sample_attempts(
    run: RunSettings,
    tasks: Sequence[Task],
    step: int,
    draw_count: int,
    task_count: int,
    excluded: Mapping[str, str] = NO_EXCLUDED,
    curriculum: CurriculumState | None = None,
) -> list[Attempt]:
    """Return ``samples_per_task`` attempts at each of the next ``task_count`` tasks.

    Tasks come from an endless, reshuffled pass over the training tasks, without excluded tasks. The name of a stream
    contains the number of the pass. A task drawn twice in a step, at the end of one pass and the start of the next,
    therefore gets two different streams.

    Args:
        run: recipe of the run.
        tasks: training tasks.
        step: index of the training step.
        draw_count: number of earlier draws.
        task_count: number of tasks.
        excluded: excluded tasks, by id, and the reason.
        curriculum: curriculum state; None for the initial state.

    Raises:
        RunError: all tasks are excluded.
    """
    drawn, _ = TaskSampler.from_tasks(run, tasks).draw(draw_count, task_count, excluded, curriculum)
    return _build_attempts(run, step, drawn)


def _build_attempts(run: RunSettings, step: int, drawn: Sequence[tuple[Task, str]], repeat: int = 0) -> list[Attempt]:
    """Return the attempts at drawn tasks, given the name of the pass that drew each."""
    attempts, critic = list[Attempt](), run.algorithm.critic.kind != "none"
    for task, passed in drawn:
        stream = f"train/{step}/{passed}" if passed else f"train/{step}"
        stream += f"/repeat-{repeat}" if repeat else ""
        for sample, questions in enumerate(_helper_call_limits(run, step, stream, task)):
            attempts.append(Attempt(task, stream, sample, record_critic_states=critic, max_helper_calls=questions))
    return attempts


def _helper_call_limits(run: RunSettings, step: int, stream: str, task: Task) -> list[int]:
    """Return the maximum number of helper calls per action, for each attempt at a task."""
    samples = run.rollout.samples_per_task
    if run.consulting is None:
        return [0] * samples
    return run.consulting.calls_per_attempt(step, samples, derive_seed(run.seed, "questions", stream, task.id))


def load_training_tasks(run: RunSettings) -> TaskSampler:
    """Load the training tasks, and check the validation tasks if the run evaluates.

    Raises:
        ValueError: a split is unusable, or ``rollout.max_steps`` is too small for a task.
    """
    if run.evaluation.every:
        read_tasks(run.environment, "validation")
    tasks = read_tasks(run.environment, "train")
    check_step_limit(tasks, run.rollout.max_steps)
    return TaskSampler(run, tasks)


def play_with_forks(
    run: RunSettings, play: PlayFunction, attempts: Sequence[Attempt], on_done: EpisodeCallback
) -> tuple[list[Episode], list[Episode]]:
    """Play attempts and the forks for credit assignment → attempts, all episodes."""
    fork_plan = get_fork_plan(run.algorithm)
    if fork_plan:
        rewarded = partial(rewards_for_credit, settings=run.algorithm.reward, limits=length_limits(run))
        return fork_plan.play_forks(play, attempts, ForkContext(run.trained_policies, rewarded, on_done))
    episodes = play(attempts, on_done=on_done)
    return episodes, episodes


def group_by_draw(episodes: Sequence[Episode], attempts: Sequence[Attempt]) -> list[list[Episode]]:
    """Group episodes by draw, forks included.

    A task drawn twice yields two groups.
    """
    streams = {attempt.stream for attempt in attempts}

    def draw_key(episode: Episode) -> tuple[str, str]:
        matching = (stream for stream in streams if f"{episode.stream}/".startswith(f"{stream}/"))
        return max(matching, key=len), episode.task.id

    return [
        [episodes[index] for index in group] for group in group_indices([draw_key(episode) for episode in episodes])
    ]


def rewards_vary(group: Sequence[Episode], run: RunSettings) -> bool:
    """Return True if graders give different rewards within the group (dynamic sampling, DAPO).

    The comparison covers the team reward and each agent's own reward. Shaping terms and prices are excluded. Candidates
    of a tree are compared by the reward of their step, within the group that credit uses.
    """
    weights, terms = run.algorithm.reward, run.rewards
    graders = {name for name, term in zip(unique_names(terms), terms, strict=True) if not term.shaping_only}
    graded = mix_rewards(
        [remove_shaping(episode, graders) for episode in group], weights.team_weight, weights.own_weight
    )
    credit = run.algorithm.credit
    if isinstance(credit.fork_plan, CandidateTree) and all(episode.fork for episode in group):
        is_across_states = getattr(credit, "group_by", "state") != "state"
        branches = group_indices([None if is_across_states else episode.fork for episode in group])
        return any(_rewards_differ([_step_rewards(graded[index]) for index in branch]) for branch in branches)
    return _rewards_differ(
        [
            [episode.total_reward, *(local_rewards(episode).get(agent.role, 0.0) for agent in run.agents)]
            for episode in graded
        ]
    )


def _step_rewards(episode: Episode) -> list[float]:
    """Return the step reward of a tree candidate in a list."""
    candidate = resampled_action(episode)
    return [step_score(episode, candidate) if candidate else 0.0]


def _rewards_differ(rewards: Sequence[Sequence[float]]) -> bool:
    """Return True if attempts earned different rewards, one list per attempt."""
    return bool(rewards) and bool(np.ptp(np.array(rewards), axis=0).max() >= EQUAL_TOLERANCE)
