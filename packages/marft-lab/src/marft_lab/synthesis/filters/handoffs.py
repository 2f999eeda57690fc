"""What came to its end on a detour: control went back and forth, or through more hands than it needs.

The efficiency of handoffs is OUR READING: no paper that we know of defines it. With ``h(e)`` the number of times that
control went from one agent to another in episode ``e``, and ``E`` the episodes that are left of its task,

    efficiency(e) = (1 + min_{e' in E} h(e')) / (1 + h(e)),

1 for the most direct one. Who handed over to whom is what ``handoff_loop_rate`` goes by: the agent that acts next in an
environment step, having seen what was done.
"""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Episode
from marft.config.parts import FilterPart
from marft.config.settings import Fraction
from marft.evaluation.trajectories.handoffs import handoffs, looping
from marft_lab.synthesis.candidates import Candidate, Refused, World


class Handoffs(FilterPart):
    """Leaves out episodes in which two agents pass control back and forth, or that took more handoffs than another one
    at the same task: ``(1 + the fewest) / (1 + its own)``."""

    least: Fraction = 0.5  # efficiency of handoffs that an episode has; 0: any
    loops: bool = False  # whether control may go back and forth between two agents more than twice in a row

    def refused(self, candidates: Sequence[Candidate], world: World) -> Refused:  # noqa: ARG002
        """Those that loop, and those that are not direct."""
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
    """The efficiency of each episode, in (0, 1].

    Args:
        tasks: of the episodes.
        counts: their handoffs.

    >>> efficiencies(["a", "a", "b"], [1, 3, 3])
    [1.0, 0.5, 1.0]
    """
    fewest: dict[str, int] = {}
    for task, own in zip(tasks, counts, strict=True):
        fewest[task] = min(own, fewest.get(task, own))
    return [(1 + fewest[task]) / (1 + own) for task, own in zip(tasks, counts, strict=True)]


def count(episode: Episode) -> int:
    """How often control went from one agent to another."""
    return sum(len(held) - 1 for held in handoffs(episode))


def _loops(candidate: Candidate) -> bool:
    return any(looping(held) for held in handoffs(candidate.episode))
