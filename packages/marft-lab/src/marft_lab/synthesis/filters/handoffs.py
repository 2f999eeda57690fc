"""Filter of episodes with detours: back-and-forth control, or more handoffs than necessary.

The handoff efficiency is OUR READING, because no paper known to us defines it. ``h(e)`` is the number of handoffs
between agents in episode ``e``. ``E`` contains the remaining episodes of the task. Then

    efficiency(e) = (1 + min_{e' in E} h(e')) / (1 + h(e)),

with 1 for the most direct episode. Handoffs are counted as in ``handoff_loop_rate``: from an
action to the next agent in the same environment step that has seen the action.
"""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Episode
from marft.config.parts import FilterPart
from marft.config.settings import Fraction
from marft.evaluation.trajectories.handoffs import handoffs, looping
from marft_lab.synthesis.candidates import Candidate, Refused, World


class Handoffs(FilterPart):
    """Filter that rejects episodes with back-and-forth handoffs, or with low handoff efficiency.

    The efficiency is ``(1 + fewest handoffs at the task) / (1 + own handoffs)``.
    """

    least: Fraction = 0.5  # minimum handoff efficiency; 0 accepts any
    loops: bool = False  # True to allow control to go back and forth between two agents more than twice in a row

    def refused(self, candidates: Sequence[Candidate], world: World) -> Refused:  # noqa: ARG002
        """Return the episodes with loops and the inefficient episodes."""
        refused = dict[int, str]()
        if not self.loops:
            refused = {n: "two agents passed it back and forth" for n, one in enumerate(candidates) if _loops(one)}
        left = [number for number in range(len(candidates)) if number not in refused]
        tasks = [candidates[number].episode.task.id for number in left]
        counts = [count(candidates[number].episode) for number in left]
        for number, share in zip(left, efficiencies(tasks, counts), strict=True):
            if share < self.least:
                refused[number] = f"efficiency of handoffs below {self.least:g}"
        return refused


def efficiencies(tasks: Sequence[str], counts: Sequence[int]) -> list[float]:
    """Return the handoff efficiency of each episode, in (0, 1].

    Args:
        tasks: task id of each episode.
        counts: number of handoffs of each episode.

    >>> efficiencies(["a", "a", "b"], [1, 3, 3])
    [1.0, 0.5, 1.0]
    """
    fewest: dict[str, int] = {}
    for task, own in zip(tasks, counts, strict=True):
        fewest[task] = min(own, fewest.get(task, own))
    return [(1 + fewest[task]) / (1 + own) for task, own in zip(tasks, counts, strict=True)]


def count(episode: Episode) -> int:
    """Return an episode's handoffs between agents."""
    return sum(len(held) - 1 for held in handoffs(episode))


def _loops(candidate: Candidate) -> bool:
    return any(looping(held) for held in handoffs(candidate.episode))
