"""Tasks with changed outcomes: newly failed and newly solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from marft.common.texts import one_line
from marft.evaluation.trajectories.ratio import Ratio

NAMED = 5  # maximum number of tasks of each kind in a sentence


class Turned(NamedTuple):
    """Tasks on both sides with a changed outcome.

    Args:
        failed: tasks solved before only.
        solved: tasks solved after only.
    """

    failed: Sequence[str]
    solved: Sequence[str]

    @property
    def sentence(self) -> str:
        """Number and some names of newly failed and newly solved tasks; "" if no outcome changed.

        >>> Turned(["sum/3", "sum/8"], []).sentence
        'newly failed: 2 (sum/3, sum/8); newly solved: 0'
        """
        if not self.failed and not self.solved:
            return ""
        return f"newly failed: {_some(self.failed)}; newly solved: {_some(self.solved)}"


def turned(before: Mapping[str, Ratio], after: Mapping[str, Ratio]) -> Turned:
    """Return the tasks with changed outcomes, from the accuracy of each task.

    A task is solved if at least half of its attempts are.

    >>> turned({"a": Ratio(1, 1), "b": Ratio(1, 4)}, {"a": Ratio(0, 1), "b": Ratio(2, 4)})
    Turned(failed=['a'], solved=['b'])
    """
    both = [task for task in before if task in after and before[task].out_of and after[task].out_of]
    return Turned(
        [task for task in both if _solved(before[task]) and not _solved(after[task])],
        [task for task in both if _solved(after[task]) and not _solved(before[task])],
    )


def _solved(accuracy: Ratio) -> bool:
    return accuracy.amount >= accuracy.out_of / 2


def _some(tasks: Sequence[str]) -> str:
    if not tasks:
        return "0"
    more = f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else ""
    return f"{len(tasks)} ({', '.join(one_line(task) for task in tasks[:NAMED])}{more})"
