"""Episode batches for training steps: selection of tasks, attempts, and forks for credit assignment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from marft.agents.game import Attempt
from marft.common.seeds import derive_seed
from marft.common.types import Episode, Task
from marft.config.run import RunSettings
from marft.envs.tasks import refuse_too_few_steps, tasks_of
from marft.rewards.groups import EQUAL, members
from marft.rewards.shaping import local_rewards, mix, priced_lengths, rewards_for_credit, unshaped
from marft.rewards.terms import Term, names_of
from marft.rollout.drawing import NONE, Draws
from marft.rollout.forking.interface import Play, Step, candidate_of, forking_of
from marft.rollout.forking.tree import Candidates, step_score
from marft.rollout.playing import Rollouts
from marft.runs.stated import Standing


@dataclass(frozen=True, slots=True, eq=False)
class Collection:
    """Episodes of one training step.

    Args:
        played: attempts of the step, sampled by the policies without forks.
        credit_inputs: episodes to train on: scored attempts and forks, including episodes from the world model.
        recorded: all episodes played in the real environment.
        tasks_drawn: number of draws consumed so far, which is where the next step continues.
        metrics: metrics of the rollout.
        begun: number of the first draw not started yet.
        imagined: episodes played in the world model.
        notes: messages for the user.
    """

    played: list[Episode]
    credit_inputs: list[Episode]
    recorded: list[Episode]
    tasks_drawn: int
    metrics: dict[str, float]
    begun: int = 0
    imagined: Sequence[Episode] = ()
    notes: tuple[str, ...] = ()


def collect(
    rollouts: Rollouts, tasks: Sequence[Task], step: int, drawn: int, on_done: Callable[[Episode], None],
    casting: Callable[[Sequence[Attempt]], Sequence[Attempt]] = lambda attempts: attempts,
    standing: Standing | None = None,
) -> Collection:  # fmt: skip
    """Play the episodes for a training step.

    Args:
        rollouts: runner for the episodes.
        tasks: training tasks.
        step: index of the training step.
        drawn: number of draws in earlier steps, which is the position in the endless pass over the tasks.
        on_done: callback for each finished attempt.
        casting: function that replaces the policies of attempts; by default agents keep their own policies.
        standing: curriculum state; None for the initial state.
    """
    run = rollouts.run
    rounds = run.algorithm.dynamic_sampling
    played: list[Episode] = []
    credit_inputs: list[Episode] = []
    recorded: list[Episode] = []
    usable: list[Episode] = []
    groups = discarded = 0  # groups for training; groups with equal rewards
    for _ in range(rounds + 1):
        wanted = run.rollout.tasks_per_step - groups
        if not wanted:
            break
        attempts, drawn = _drawn(run, tasks, step, drawn, wanted, rollouts.set_aside, standing)
        new, everything = _play(rollouts, casting(attempts), on_done)
        played += new
        recorded += everything
        scored = [episode for episode in everything if episode.scored]
        usable = scored or usable
        draws = by_draw(scored, attempts)
        kept = [group for group in draws if told_apart(group, run)] if rounds else draws
        groups, discarded = groups + len(kept), discarded + len(draws) - len(kept)
        told = {id(episode) for group in kept for episode in group}
        credit_inputs += [episode for episode in scored if id(episode) in told]
    metrics = ({"groups_discarded": float(discarded)} if rounds else {}) | fork_metrics(recorded)
    return Collection(played, credit_inputs or alone(usable), recorded, drawn, metrics, drawn)


def alone(episodes: Sequence[Episode]) -> list[Episode]:
    """Return one attempt per task, for a step with equal rewards within every group.

    A single attempt has nothing to be compared with. Several attempts would still differ in shaping terms and prices.
    """
    first = [group[0] for group in members([episode.task.id for episode in episodes])]
    return [episodes[index] for index in first]


def fork_metrics(recorded: Sequence[Episode]) -> dict[str, float]:
    """Return the number of forks and of failed forks; empty without forks."""
    forks = [episode for episode in recorded if episode.fork is not None]
    failed = float(sum(not episode.scored for episode in forks))
    return {"forks": float(len(forks)), "forks_failed": failed} if forks else {}


def attempts_at(
    run: RunSettings, tasks: Sequence[Task], step: int, drawn: int, wanted: int, set_aside: Mapping[str, str] = NONE,
    standing: Standing | None = None,
) -> list[Attempt]:  # fmt: skip
    """Return ``samples_per_task`` attempts at each of the next ``wanted`` tasks.

    Tasks come from an endless, reshuffled pass over the training tasks, without excluded tasks. The name of a stream
    contains the number of the pass. A task drawn twice in a step, at the end of one pass and the start of the next,
    therefore gets two different streams.

    Args:
        run: recipe of the run.
        tasks: training tasks.
        step: index of the training step.
        drawn: number of earlier draws.
        wanted: number of tasks.
        set_aside: excluded tasks, by id, and the reason.
        standing: curriculum state; None for the initial state.

    Raises:
        RunError: all tasks are excluded.
    """
    return _drawn(run, tasks, step, drawn, wanted, set_aside, standing)[0]


def _drawn(
    run: RunSettings, tasks: Sequence[Task], step: int, drawn: int, wanted: int, set_aside: Mapping[str, str],
    standing: Standing | None = None,
) -> tuple[list[Attempt], int]:  # fmt: skip
    """Return the attempts of :func:`attempts_at` and the new number of draws."""
    attempts, critic = list[Attempt](), run.algorithm.critic.kind != "none"
    draws = Draws.of(run, tasks)
    while wanted:
        (task, passed), drawn = draws.at(drawn, standing or draws.begun(), set_aside), drawn + 1
        if task is None:
            continue
        wanted -= 1
        stream = f"train/{step}/{passed}" if passed else f"train/{step}"
        for sample, questions in enumerate(_questions(run, step, stream, task)):
            attempts.append(Attempt(task, stream, sample, critic_states=critic, questions=questions))
    return attempts, drawn


def _questions(run: RunSettings, step: int, stream: str, task: Task) -> list[int]:
    """Return the maximum number of helper calls per action, for each attempt at a task."""
    samples = run.rollout.samples_per_task
    if run.consulting is None:
        return [0] * samples
    return run.consulting.shared_out(step, samples, derive_seed(run.seed, "questions", stream, task.id))


def training_tasks(run: RunSettings) -> Draws:
    """Load the training tasks, and check the validation tasks if the run evaluates.

    Raises:
        ValueError: a split is unusable, or ``rollout.max_steps`` is too small for a task.
    """
    if run.evaluation.every:
        tasks_of(run.environment, "validation")
    tasks = tasks_of(run.environment, "train")
    refuse_too_few_steps(tasks, run.rollout.max_steps)
    return Draws(run, tasks)


def _play(
    rollouts: Rollouts, attempts: Sequence[Attempt], on_done: Callable[[Episode], None]
) -> tuple[list[Episode], list[Episode]]:
    """Play attempts and their forks → attempts, all episodes."""
    return play_forking(rollouts.run, rollouts.play, attempts, on_done)


def play_forking(
    run: RunSettings, play: Play, attempts: Sequence[Attempt], on_done: Callable[[Episode], None]
) -> tuple[list[Episode], list[Episode]]:
    """Play attempts and the forks for credit assignment → attempts, all episodes."""
    forking = forking_of(run.algorithm)
    if forking:
        return forking.play(play, attempts, Step(run.trained_policies, lambda e: _rewarded(e, run), on_done))
    played = play(attempts, on_done=on_done)
    return played, played


def by_draw(episodes: Sequence[Episode], attempts: Sequence[Attempt]) -> list[list[Episode]]:
    """Group episodes by draw, forks included.

    A task drawn twice yields two groups.
    """
    streams = {attempt.stream for attempt in attempts}

    def drawn(episode: Episode) -> tuple[str, str]:
        begun = (stream for stream in streams if f"{episode.stream}/".startswith(f"{stream}/"))
        return max(begun, key=len, default=episode.stream), episode.task.id

    return [[episodes[index] for index in group] for group in members([drawn(episode) for episode in episodes])]


def told_apart(group: Sequence[Episode], run: RunSettings) -> bool:
    """Return True if graders give different rewards within the group (dynamic sampling, DAPO).

    The comparison covers the team reward and each agent's own reward. Shaping terms and prices are excluded. Candidates
    of a tree are compared by the reward of their step, within the group that credit uses.
    """
    weights, terms = run.algorithm.reward, cast("Sequence[Term]", run.rewards)
    graders = {name for name, term in zip(names_of(terms), terms, strict=True) if not term.shapes}
    graded = mix([unshaped(episode, graders) for episode in group], weights.team, weights.own)
    credit = run.algorithm.credit
    if isinstance(credit.forking, Candidates) and all(episode.fork for episode in group):
        whole = getattr(credit, "compared", "state") != "state"
        branches = members([None if whole else episode.fork for episode in group])
        return any(_apart([_paid(graded[index]) for index in branch]) for branch in branches)
    return _apart([
        [episode.total_reward, *(local_rewards(episode).get(agent.role, 0.0) for agent in run.agents)]
        for episode in graded
    ])  # fmt: skip


def _paid(episode: Episode) -> list[float]:
    """Return the step reward of a tree candidate in a list."""
    candidate = candidate_of(episode)
    return [step_score(episode, candidate) if candidate else 0.0]


def _apart(earned: Sequence[Sequence[float]]) -> bool:
    """Return True if attempts earned different rewards, one list per attempt."""
    return bool(earned) and bool(np.ptp(np.array(earned), axis=0).max() >= EQUAL)


def _rewarded(episodes: Sequence[Episode], run: RunSettings) -> list[Episode]:
    return rewards_for_credit(episodes, run.algorithm.reward, priced_lengths(run))
