"""What a network is judged by: a team that plays it, tasks to learn from, and held-out ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from marft.agents.game import Attempt
from marft.common.types import Episode, Task
from marft.evaluation.intervals import bounds_of_gain, paired_difference
from marft_lab.flows.choosing import context_of, played_of
from marft_lab.flows.network import FlowNetwork
from marft_lab.flows.organization import Flow, path_of_step

HELD_OUT = "flow/held-out"  # the stream of what is compared: the same seeds before and after


class Play(Protocol):
    """Lets a team play attempts → their episodes, in the same order."""

    def __call__(self, flow: Flow, attempts: Sequence[Attempt], /) -> list[Episode]: ...


@dataclass(frozen=True, slots=True)
class Judged:
    """A network against another on the same held-out tasks: what it gained of their success, and from where to where
    that is."""

    gain: float
    low: float
    high: float
    tasks: int


@dataclass(frozen=True, slots=True)
class Board:
    """What tuning plays with. No network changes while it is played: each try is another one.

    Args:
        flow: the team's organization; its own odds choose.
        tasks: to learn from.
        held_out: to judge by; none of those that a result is claimed of.
        seed: of the run that ``play`` plays.
    """

    flow: Flow
    play: Play
    tasks: Sequence[Task]
    held_out: Sequence[Task]
    seed: int = 0

    def greedy(self, network: FlowNetwork, attempts: Sequence[Attempt]) -> list[Episode]:
        """Attempts along the likeliest edges."""
        return self.play(self.flow.playing(network, 0.0), attempts)

    def path(self, network: FlowNetwork, context: str) -> tuple[str, ...]:
        """The likeliest path for tasks of a context, skipped nodes included."""
        return path_of_step(network, context, 0, 0, self.flow.most, 0.0)

    def acting(self, network: FlowNetwork, context: str) -> tuple[str, ...]:
        """The nodes that act on it."""
        return played_of(network, context, self.path(network, context))

    def by_context(self, network: FlowNetwork) -> dict[str, list[Task]]:
        """The held-out tasks by their context, the first found first."""
        found: dict[str, list[Task]] = {}
        for task in self.held_out:
            found.setdefault(context_of(network, task.prompt), []).append(task)
        return found

    def outcomes(self, network: FlowNetwork, tasks: Sequence[Task]) -> dict[str, bool]:
        """Whether each task was solved along the likeliest edges, by id; those of which nothing is known are left
        out."""
        episodes = self.greedy(network, [Attempt(task, HELD_OUT) for task in tasks])
        return {e.task.id: e.success for e in episodes if e.scored and e.success is not None}


def refuse_unknown(outcomes: Mapping[str, bool]) -> None:
    """
    Raises:
        ValueError: of no task is it known whether it was solved.
    """
    if not outcomes:
        raise ValueError(
            "a flow network is judged by held-out tasks, and of none is it known whether it was solved: the "
            "environment has to say so (Step.success), and episodes must not fail"
        )


def judged(before: Mapping[str, bool], after: Mapping[str, bool]) -> Judged:
    """The later outcomes against the earlier ones of the same tasks, with a 95 % interval
    (:func:`marft.evaluation.intervals.paired_difference`). A task of which nothing is known any more counts as not
    solved: else a network would be the better, the more of its episodes fail.

    Raises:
        ValueError: of no task was it known before.
    """
    refuse_unknown(before)
    gain, (low, high) = paired_difference([*before.values()], [after.get(task, False) for task in before])
    return Judged(gain, low, high, len(before))


def bounded(before: Mapping[str, bool], after: Mapping[str, bool]) -> Judged:
    """As :func:`judged`, with bounds of 95 % each by itself, exact for losses alone or gains alone
    (:func:`marft.evaluation.intervals.bounds_of_gain`): what says that nothing was lost must not be too sure of losses
    that are rare.

    Raises:
        ValueError: of no task was it known before.
    """
    refuse_unknown(before)
    gains = [float(after.get(task, False)) - solved for task, solved in before.items()]
    return Judged(sum(gains) / len(gains), *bounds_of_gain(gains), len(gains))
