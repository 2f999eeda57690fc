"""Choice of the best candidate by successive halving, and a paired test against the current version.

The method is successive halving (Jamieson and Talwalkar 2016): many candidates play few tasks, and the better half
plays twice as many. The choice biases its own tasks, so the final test uses separate tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from marft.common.prompt_history import PromptScore
from marft.common.types import Task
from marft.evaluation.intervals import paired_difference, wilson_interval

T = TypeVar("T")
Outcomes = dict[str, bool]  # success of each task, by id; tasks without a known outcome are omitted
Play = Callable[[T, Sequence[Task]], Outcomes]


def halving_rounds(candidates: int, tasks: int) -> list[int]:
    """Return the cumulative number of tasks after each round of halving; empty for a single candidate.

    >>> halving_rounds(4, 32), halving_rounds(5, 32), halving_rounds(1, 32)
    ([16, 32], [8, 16, 32], [])

    Args:
        candidates: number of candidates.
        tasks: number of tasks for the last round.
    """
    rounds = (candidates - 1).bit_length()
    return [max(1, tasks >> remaining) for remaining in reversed(range(rounds))]


def select_best(candidates: Sequence[T], tasks: Sequence[Task], play: Play[T]) -> tuple[int, list[Outcomes]]:
    """Return the best candidate's index, and every candidate's outcomes.

    Ties go to the first candidate.

    Args:
        candidates: candidates to compare.
        tasks: tasks for the choice.
        play: function that plays tasks with a candidate.
    """
    outcomes: list[Outcomes] = [{} for _ in candidates]
    remaining, task_count = list(range(len(candidates))), 0
    for size in halving_rounds(len(candidates), len(tasks)):
        for index in remaining:
            outcomes[index] |= play(candidates[index], tasks[task_count:size])
        task_count = size
        remaining = sorted(
            sorted(remaining, key=lambda index: -success_rate(outcomes[index]))[: (len(remaining) + 1) // 2]
        )
    return remaining[0], outcomes


def success_rate(outcomes: Mapping[str, bool]) -> float:
    """Return the fraction of solved tasks; 0 without a known outcome."""
    return sum(outcomes.values()) / len(outcomes) if outcomes else 0.0


def measure_gain(before: Mapping[str, bool], after: Mapping[str, bool]) -> PromptScore | None:
    """Return a candidate's gain over the current version, on tasks with both outcomes; None without common tasks."""
    common = before.keys() & after.keys()
    if not common:
        return None
    gain, (gain_low, gain_high) = paired_difference([before[task] for task in common], [after[task] for task in common])
    solved = sum(after[task] for task in common)
    low, high = wilson_interval(solved, len(common))
    return PromptScore(len(common), solved / len(common), low, high, gain, gain_low, gain_high)
