"""What a training step learns from: which tasks are attempted, and what is played for the algorithm's sake."""

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
    """``played`` are the step's attempts as the policies make them; ``credit_inputs`` is what can be learned from:
    scored episodes and forks, imagined ones among them; ``recorded`` is everything that was lived, and ``imagined``
    what was not. Draws of the pass over tasks from ``begun`` on are not begun yet. ``notes`` are to be told."""

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
    """Play the episodes of one training step.

    Args:
        drawn: tasks drawn in earlier steps: how far the endless pass over the training tasks is.
        casting: the attempts with the policies that play in them, where those are not the agents' own.
        standing: of the curriculum; None where it begins.
    """
    run = rollouts.run
    rounds = run.algorithm.dynamic_sampling
    played: list[Episode] = []
    credit_inputs: list[Episode] = []
    recorded: list[Episode] = []
    usable: list[Episode] = []
    groups = discarded = 0  # that are learned from; that told nothing apart
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
    """Return what is counted of a step in which nothing tells attempts apart: one attempt at each task, which has
    nothing to be compared with. Terms that shape and prices would tell several apart."""
    first = [group[0] for group in members([episode.task.id for episode in episodes])]
    return [episodes[index] for index in first]


def fork_metrics(recorded: Sequence[Episode]) -> dict[str, float]:
    """How many episodes are forks, where any is, and how many of them could not be scored."""
    forks = [episode for episode in recorded if episode.fork is not None]
    failed = float(sum(not episode.scored for episode in forks))
    return {"forks": float(len(forks)), "forks_failed": failed} if forks else {}


def attempts_at(
    run: RunSettings, tasks: Sequence[Task], step: int, drawn: int, wanted: int, set_aside: Mapping[str, str] = NONE,
    standing: Standing | None = None,
) -> list[Attempt]:  # fmt: skip
    """``samples_per_task`` attempts at each of the next tasks of an endless, reshuffled pass over all, without those
    that are set aside.

    The pass is part of the stream's name: a step that reaches into the next one may come by a task twice.

    Args:
        standing: of the curriculum; None where it begins.

    Raises:
        RunError: all tasks are set aside.
    """
    return _drawn(run, tasks, step, drawn, wanted, set_aside, standing)[0]


def _drawn(
    run: RunSettings, tasks: Sequence[Task], step: int, drawn: int, wanted: int, set_aside: Mapping[str, str],
    standing: Standing | None = None,
) -> tuple[list[Attempt], int]:  # fmt: skip
    """:func:`attempts_at` → how far the pass is then, too."""
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
    """How many questions each attempt at a task may ask helpers in one action."""
    samples = run.rollout.samples_per_task
    if run.consulting is None:
        return [0] * samples
    return run.consulting.shared_out(step, samples, derive_seed(run.seed, "questions", stream, task.id))


def training_tasks(run: RunSettings) -> Draws:
    """The training split, as it is drawn from; the validation split is looked at, where it will be needed.

    Raises:
        ValueError: one of them cannot be used, or an episode has too few steps.
    """
    if run.evaluation.every:
        tasks_of(run.environment, "validation")
    tasks = tasks_of(run.environment, "train")
    refuse_too_few_steps(tasks, run.rollout.max_steps)
    return Draws(run, tasks)


def _play(
    rollouts: Rollouts, attempts: Sequence[Attempt], on_done: Callable[[Episode], None]
) -> tuple[list[Episode], list[Episode]]:
    """Play attempts the way that the algorithm's credit asks for → the attempts themselves, and everything played."""
    return play_forking(rollouts.run, rollouts.play, attempts, on_done)


def play_forking(
    run: RunSettings, play: Play, attempts: Sequence[Attempt], on_done: Callable[[Episode], None]
) -> tuple[list[Episode], list[Episode]]:
    """Play attempts, and what the algorithm's credit wants to be forked from them → the attempts themselves, and
    everything that was played."""
    forking = forking_of(run.algorithm)
    if forking:
        return forking.play(play, attempts, Step(run.trained_policies, lambda e: _rewarded(e, run), on_done))
    played = play(attempts, on_done=on_done)
    return played, played


def by_draw(episodes: Sequence[Episode], attempts: Sequence[Attempt]) -> list[list[Episode]]:
    """Group the episodes of a round by the draw that they belong to, forks among them. A task that is drawn twice is
    two groups."""
    streams = {attempt.stream for attempt in attempts}

    def drawn(episode: Episode) -> tuple[str, str]:
        begun = (stream for stream in streams if f"{episode.stream}/".startswith(f"{stream}/"))
        return max(begun, key=len, default=episode.stream), episode.task.id

    return [[episodes[index] for index in group] for group in members([drawn(episode) for episode in episodes])]


def told_apart(group: Sequence[Episode], run: RunSettings) -> bool:
    """Return True where the group's graders tell its attempts apart (DAPO's dynamic sampling): the team, or an agent
    with rewards of its own, was graded differently. Terms that shape, and prices, are left out. Candidates of a tree
    are held against those that they are compared with, by what their step paid."""
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
    """Return what the step of a tree's candidate paid."""
    candidate = candidate_of(episode)
    return [step_score(episode, candidate) if candidate else 0.0]


def _apart(earned: Sequence[Sequence[float]]) -> bool:
    """Return True where attempts earned different rewards, one list an attempt."""
    return bool(earned) and bool(np.ptp(np.array(earned), axis=0).max() >= EQUAL)


def _rewarded(episodes: Sequence[Episode], run: RunSettings) -> list[Episode]:
    return rewards_for_credit(episodes, run.algorithm.reward, priced_lengths(run))
