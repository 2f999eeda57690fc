"""Evaluation of a flow network: a team that plays the network, training tasks and held-out tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from marft.agents.game import Attempt
from marft.common.types import Episode, Task
from marft.evaluation.intervals import gain_bounds, paired_difference
from marft_lab.flows.edge_policy import active_nodes, match_context
from marft_lab.flows.network import FlowNetwork
from marft_lab.flows.organization import Flow, sample_step_path

HELD_OUT_STREAM = "flow/held-out"  # random stream of comparisons: the same seeds before and after a change


class Play(Protocol):
    """Function that plays attempts with a team, and returns their episodes in the same order."""

    def __call__(self, flow: Flow, attempts: Sequence[Attempt], /) -> list[Episode]: ...


@dataclass(frozen=True, slots=True)
class GainEstimate:
    """Estimated gain of a network over another network on the same held-out tasks.

    Args:
        gain: difference of the success rates.
        low: lower bound of the gain.
        high: upper bound of the gain.
        tasks: number of tasks.
    """

    gain: float
    low: float
    high: float
    tasks: int


@dataclass(frozen=True, slots=True)
class FlowEvaluator:
    """Evaluator for flow tuning; each attempt plays a separate network, and networks are immutable.

    Args:
        flow: organization of the team, with path sampling by edge probabilities.
        play: function that plays attempts.
        tasks: training tasks.
        held_out: tasks for decisions; keep them separate from test tasks.
        seed: seed of the run behind ``play``.
    """

    flow: Flow
    play: Play
    tasks: Sequence[Task]
    held_out: Sequence[Task]
    seed: int = 0

    def play_greedy(self, network: FlowNetwork, attempts: Sequence[Attempt]) -> list[Episode]:
        """Play attempts along the likeliest edges."""
        return self.play(self.flow.with_network(network, 0.0), attempts)

    def greedy_path(self, network: FlowNetwork, context: str) -> tuple[str, ...]:
        """Return the likeliest path for tasks of a context, with skipped nodes."""
        return sample_step_path(network, context, 0, 0, self.flow.max_nodes, 0.0)

    def active_nodes(self, network: FlowNetwork, context: str) -> tuple[str, ...]:
        """Return the acting nodes of the likeliest path."""
        return active_nodes(network, context, self.greedy_path(network, context))

    def tasks_by_context(self, network: FlowNetwork) -> dict[str, list[Task]]:
        """Return the held-out tasks by context, in order of first occurrence."""
        groups: dict[str, list[Task]] = {}
        for task in self.held_out:
            groups.setdefault(match_context(network, task.prompt), []).append(task)
        return groups

    def task_outcomes(self, network: FlowNetwork, tasks: Sequence[Task]) -> dict[str, bool]:
        """Return the success of each task along the likeliest edges, by task id.

        Tasks without a known outcome are omitted.
        """
        episodes = self.play_greedy(network, [Attempt(task, HELD_OUT_STREAM) for task in tasks])
        return {e.task.id: e.success for e in episodes if e.is_scored and e.success is not None}


def check_known_outcomes(outcomes: Mapping[str, bool]) -> None:
    """Check that outcomes are known.

    Raises:
        ValueError: no task has a known outcome.
    """
    if not outcomes:
        raise ValueError(
            "a flow network is judged by held-out tasks, and of none is it known whether it was solved: the "
            "environment has to say so (Step.success), and episodes must not fail"
        )


def estimate_gain(before: Mapping[str, bool], after: Mapping[str, bool]) -> GainEstimate:
    """Return the gain of the later outcomes over the earlier outcomes, with a 95 % interval.

    The interval comes from :func:`marft.evaluation.intervals.paired_difference`. A task without a later outcome counts
    as failed. Otherwise failing episodes would improve a network.

    Raises:
        ValueError: no task has an earlier outcome.
    """
    check_known_outcomes(before)
    gain, (low, high) = paired_difference([*before.values()], [after.get(task, False) for task in before])
    return GainEstimate(gain, low, high, len(before))


def bound_gain(before: Mapping[str, bool], after: Mapping[str, bool]) -> GainEstimate:
    """Return the gain like :func:`estimate_gain`, with separate one-sided 95 % bounds.

    The bounds are exact for pure losses and pure gains (:func:`marft.evaluation.intervals.gain_bounds`). A claim of
    no loss must not underestimate rare losses.

    Raises:
        ValueError: no task has an earlier outcome.
    """
    check_known_outcomes(before)
    gains = [float(after.get(task, False)) - solved for task, solved in before.items()]
    return GainEstimate(sum(gains) / len(gains), *gain_bounds(gains), len(gains))
