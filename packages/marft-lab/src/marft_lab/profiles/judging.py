"""Choice of the best candidate by successive halving, and a paired test against the current version.

The method is successive halving (Jamieson and Talwalkar 2016): many candidates play few tasks, and the better half
plays twice as many. The choice biases its own tasks, so the final test uses separate tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from marft.common.lineage import Worth
from marft.common.types import Task
from marft.evaluation.intervals import paired_difference, wilson

T = TypeVar("T")
Outcomes = dict[str, bool]  # success of each task, by id; tasks without a known outcome are omitted
Play = Callable[[T, Sequence[Task]], Outcomes]


def rungs(candidates: int, tasks: int) -> list[int]:
    """Return the cumulative number of tasks after each round of halving; empty for a single candidate.

    >>> rungs(4, 32), rungs(5, 32), rungs(1, 32)
    ([16, 32], [8, 16, 32], [])

    Args:
        candidates: number of candidates.
        tasks: number of tasks for the last round.
    """
    halvings = (candidates - 1).bit_length()
    return [max(1, tasks >> left) for left in reversed(range(halvings))]


def halved(candidates: Sequence[T], tasks: Sequence[Task], play: Play[T]) -> tuple[int, list[Outcomes]]:
    """Return the best candidate's index, and every candidate's outcomes.

    Ties go to the first candidate.

    Args:
        candidates: candidates to compare.
        tasks: tasks for the choice.
        play: function that plays tasks with a candidate.
    """
    found: list[Outcomes] = [{} for _ in candidates]
    left, played = list(range(len(candidates))), 0
    for size in rungs(len(candidates), len(tasks)):
        for place in left:
            found[place] |= play(candidates[place], tasks[played:size])
        played = size
        left = sorted(sorted(left, key=lambda place: -share(found[place]))[: (len(left) + 1) // 2])
    return left[0], found


def share(outcomes: Mapping[str, bool]) -> float:
    """Return the fraction of solved tasks; 0 without a known outcome."""
    return sum(outcomes.values()) / len(outcomes) if outcomes else 0.0


def worth(before: Mapping[str, bool], after: Mapping[str, bool]) -> Worth | None:
    """Return a candidate's gain over the current version, on tasks with both outcomes; None without common tasks."""
    both = before.keys() & after.keys()
    if not both:
        return None
    gain, (gain_low, gain_high) = paired_difference([before[task] for task in both], [after[task] for task in both])
    solved = sum(after[task] for task in both)
    low, high = wilson(solved, len(both))
    return Worth(len(both), solved / len(both), low, high, gain, gain_low, gain_high)
