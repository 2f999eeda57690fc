"""What a training step learns from: which tasks are attempted, and what is played for the algorithm's sake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marft import forking, seeds
from marft.config.run import RunSettings
from marft.game.game import Attempt
from marft.learning.credit.groups import EQUAL, members
from marft.stage import Stage
from marft.types import Episode, Task


@dataclass(frozen=True, slots=True, eq=False)
class Experience:
    """``played`` are the step's episodes; ``evidence`` is what can be learned from: the scored ones and their forks."""

    played: list[Episode]
    evidence: list[Episode]
    tasks_drawn: int
    metrics: dict[str, float]


def gather(
    stage: Stage, tasks: Sequence[Task], step: int, drawn: int, on_done: Callable[[Episode], None]
) -> Experience:
    """Play the episodes of one training step.

    Args:
        drawn: tasks drawn in earlier steps: how far the endless pass over the training tasks is.
    """
    run = stage.run
    rounds = run.algorithm.dynamic_sampling
    played: list[Episode] = []
    evidence: list[Episode] = []
    discarded = 0.0
    for round_ in range(rounds + 1):
        wanted = run.rollout.tasks_per_step - len({episode.task.id for episode in evidence if rounds})
        attempts = attempts_at(run, tasks, step, drawn, wanted)
        drawn += wanted
        new, usable = _play(stage, attempts, on_done)
        played += new
        kept = _told_apart(usable) if rounds else usable
        discarded += len({episode.task.id for episode in usable} - {episode.task.id for episode in kept})
        evidence += kept
        if not rounds or len({episode.task.id for episode in evidence}) >= run.rollout.tasks_per_step:
            break
        if round_ == rounds and not evidence:
            evidence = usable  # nothing tells them apart: no advantage, but the step can still be counted
    return Experience(played, evidence, drawn, {"groups_discarded": discarded} if rounds else {})


def attempts_at(run: RunSettings, tasks: Sequence[Task], step: int, drawn: int, wanted: int) -> list[Attempt]:
    """``samples_per_task`` attempts at each of the next tasks of an endless, reshuffled pass over all."""
    attempts, critic = [], run.algorithm.critic.kind != "none"
    repeats = run.rollout.tasks_per_step * (run.algorithm.dynamic_sampling + 1) > len(tasks)
    for place in range(drawn, drawn + wanted):
        epoch, index = divmod(place, len(tasks))
        order = seeds.generator(run.seed, "task order", epoch).permutation(len(tasks))
        stream = f"train/{step}/{epoch}" if repeats else f"train/{step}"
        for sample in range(run.rollout.samples_per_task):
            attempts.append(Attempt(tasks[int(order[index])], stream, sample, critic_states=critic))
    return attempts


def training_tasks(run: RunSettings) -> Sequence[Task]:
    """The training split.

    Raises:
        ValueError: it is empty.
    """
    tasks: Sequence[Task] = run.environment.tasks("train")  # type: ignore[attr-defined]
    if not tasks:
        raise ValueError("environment: its training split has no tasks")
    return tasks


def _play(
    stage: Stage, attempts: Sequence[Attempt], on_done: Callable[[Episode], None]
) -> tuple[list[Episode], list[Episode]]:
    """Play attempts the way that the algorithm's credit asks for → the episodes, and the scored ones with forks."""
    credit: Any = stage.run.algorithm.credit
    forking_for = getattr(credit, "forks", "")
    if forking_for == "tree":
        came_to, evidence = forking.tree(stage.play, attempts, credit.candidates, credit.carry)
        for episode in came_to:
            on_done(episode)
        return came_to, evidence
    played = stage.play(attempts, on_done=on_done)
    forks: list[Episode] = []
    if forking_for == "counterfactual":
        forks = forking.counterfactuals(stage.play, attempts, played, credit.resamples, stage.run.trained_policies)
    elif forking_for == "cross":
        forks = forking.crossed(stage.play, attempts, played)
    return played, [episode for episode in [*played, *forks] if episode.scored]


def _told_apart(episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes of groups in which rewards differ (DAPO's dynamic sampling)."""
    kept: set[int] = set()
    for group in members([episode.task.id for episode in episodes]):
        rewards = [episodes[index].total_reward for index in group]
        if max(rewards) - min(rewards) >= EQUAL:
            kept.update(group)
    return [episode for index, episode in enumerate(episodes) if index in kept]
