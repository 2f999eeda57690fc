"""Filter of episodes with detours: back-and-forth control, or more handoffs than necessary.

The handoff efficiency is OUR READING, because no paper known to us defines it. ``h(e)`` is the number of handoffs
between agents in episode ``e``. ``E`` contains the remaining episodes of the task. Then

    efficiency(e) = (1 + min_{e' in E} h(e')) / (1 + h(e)),

with 1 for the most direct episode. Handoffs are counted as in ``handoff_loop_rate``: from an
action to the next agent in the same environment step that has seen the action.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from marft.common.types import Episode
from marft.config.settings import Fraction
from marft.evaluation.trajectory_metrics import find_loops, iter_handoffs
from marft_lab.synthesis.candidates import Candidate, Filter, FilterContext, Rejections


class InefficientHandoffs(Filter):
    """Filter that rejects episodes with back-and-forth handoffs, or with low handoff efficiency.

    The efficiency is ``(1 + fewest handoffs at the task) / (1 + own handoffs)``.
    """

    min_efficiency: Fraction = Field(default=0.5, description="minimum handoff efficiency; 0: no minimum")
    allow_loops: bool = Field(
        default=False, description="allow back-and-forth handoffs between two agents more than twice in a row"
    )

    def reject(self, candidates: Sequence[Candidate], context: FilterContext) -> Rejections:  # noqa: ARG002
        """Return the episodes with loops and the inefficient episodes."""
        rejections = dict[int, str]()
        if not self.allow_loops:
            rejections = {
                n: "two agents passed it back and forth"
                for n, candidate in enumerate(candidates)
                if any(find_loops(chain) for chain in iter_handoffs(candidate.episode))
            }
        remaining = [number for number in range(len(candidates)) if number not in rejections]
        tasks = [candidates[number].episode.task.id for number in remaining]
        counts = [count_handoffs(candidates[number].episode) for number in remaining]
        for number, share in zip(remaining, handoff_efficiencies(tasks, counts), strict=True):
            if share < self.min_efficiency:
                rejections[number] = f"efficiency of handoffs below {self.min_efficiency:g}"
        return rejections


def handoff_efficiencies(tasks: Sequence[str], counts: Sequence[int]) -> list[float]:
    """Return the handoff efficiency of each episode, in (0, 1].

    Args:
        tasks: task id of each episode.
        counts: number of handoffs of each episode.

    >>> handoff_efficiencies(["a", "a", "b"], [1, 3, 3])
    [1.0, 0.5, 1.0]
    """
    min_counts: dict[str, int] = {}
    for task, task_count in zip(tasks, counts, strict=True):
        min_counts[task] = min(task_count, min_counts.get(task, task_count))
    return [(1 + min_counts[task]) / (1 + task_count) for task, task_count in zip(tasks, counts, strict=True)]


def count_handoffs(episode: Episode) -> int:
    """Return an episode's handoffs between agents."""
    return sum(len(chain) - 1 for chain in iter_handoffs(episode))
