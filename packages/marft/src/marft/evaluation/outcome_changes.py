"""Tasks with changed outcomes: newly failed and newly solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from marft.common.texts import single_line
from marft.evaluation.trajectories.ratio import Ratio

MAX_NAMED_TASKS = 5  # maximum number of tasks of each kind in a sentence


class OutcomeChanges(NamedTuple):
    """Tasks on both sides with a changed outcome.

    Args:
        failed: tasks solved before only.
        solved: tasks solved after only.
    """

    failed: Sequence[str]
    solved: Sequence[str]

    @property
    def summary(self) -> str:
        """Number and some names of newly failed and newly solved tasks; "" if no outcome changed.

        >>> OutcomeChanges(["sum/3", "sum/8"], []).summary
        'newly failed: 2 (sum/3, sum/8); newly solved: 0'
        """
        if not self.failed and not self.solved:
            return ""
        return f"newly failed: {_format_tasks(self.failed)}; newly solved: {_format_tasks(self.solved)}"


def find_outcome_changes(before: Mapping[str, Ratio], after: Mapping[str, Ratio]) -> OutcomeChanges:
    """Return the tasks with changed outcomes, from the accuracy of each task.

    A task is solved if at least half of its attempts are.

    >>> find_outcome_changes({"a": Ratio(1, 1), "b": Ratio(1, 4)}, {"a": Ratio(0, 1), "b": Ratio(2, 4)})
    OutcomeChanges(failed=['a'], solved=['b'])
    """
    both = [task for task in before if task in after and before[task].denominator and after[task].denominator]
    return OutcomeChanges(
        [task for task in both if _is_solved(before[task]) and not _is_solved(after[task])],
        [task for task in both if _is_solved(after[task]) and not _is_solved(before[task])],
    )


def _is_solved(accuracy: Ratio) -> bool:
    return accuracy.numerator >= accuracy.denominator / 2


def _format_tasks(tasks: Sequence[str]) -> str:
    if not tasks:
        return "0"
    more = f" and {len(tasks) - MAX_NAMED_TASKS} more" if len(tasks) > MAX_NAMED_TASKS else ""
    return f"{len(tasks)} ({', '.join(single_line(task) for task in tasks[:MAX_NAMED_TASKS])}{more})"
