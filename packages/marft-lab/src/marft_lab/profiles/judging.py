"""Which of several candidates is best, by successive halving; and is it better? By a paired test on other tasks.

Halving is that of Jamieson and Talwalkar 2016: many are played on few tasks, the better half on twice as many. What
chose the best decides nothing more about it: it is tested on tasks that none was chosen by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from marft.common.lineage import Worth
from marft.common.types import Task
from marft.evaluation.intervals import paired_difference, wilson

T = TypeVar("T")
Outcomes = dict[str, bool]  # whether a task was solved, by id; what is not known is left out
Play = Callable[[T, Sequence[Task]], Outcomes]


def rungs(candidates: int, tasks: int) -> list[int]:
    """How many tasks those that are left have played after each round of halving; none where there is nothing to
    choose.

    >>> rungs(4, 32), rungs(5, 32), rungs(1, 32)
    ([16, 32], [8, 16, 32], [])

    Args:
        tasks: that the last two are chosen by.
    """
    halvings = (candidates - 1).bit_length()
    return [max(1, tasks >> left) for left in reversed(range(halvings))]


def halved(candidates: Sequence[T], tasks: Sequence[Task], play: Play[T]) -> tuple[int, list[Outcomes]]:
    """The place of the best candidate, and what came of each. Of equals the first is the better.

    Args:
        play: lets one candidate play tasks.
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
    """Of tasks that were solved; 0 where nothing is known."""
    return sum(outcomes.values()) / len(outcomes) if outcomes else 0.0


def worth(before: Mapping[str, bool], after: Mapping[str, bool]) -> Worth | None:
    """What a candidate was worth beside the current version, on the tasks of which both are known; None without any."""
    both = before.keys() & after.keys()
    if not both:
        return None
    gain, (gain_low, gain_high) = paired_difference([before[task] for task in both], [after[task] for task in both])
    solved = sum(after[task] for task in both)
    low, high = wilson(solved, len(both))
    return Worth(len(both), solved / len(both), low, high, gain, gain_low, gain_high)
