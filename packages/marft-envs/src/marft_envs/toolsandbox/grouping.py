"""Groups of related tasks, for splits without overlap."""

from __future__ import annotations

from collections.abc import Sequence


def group_related(marks: Sequence[Sequence[str]]) -> list[str]:
    """Return each task's group: the smallest mark among its related tasks.

    Two tasks are related if they share a mark, or if both are related to a third task.

    Args:
        marks: marks of each task, at least one.

    >>> group_related([["of a", "asks 1"], ["of b", "asks 1"], ["of c", "asks 2"]])
    ['asks 1', 'asks 1', 'asks 2']
    """
    parents: dict[str, str] = {}

    def find_root(mark: str) -> str:
        """Return the root of a mark, with path compression."""
        while (parent := parents.setdefault(mark, mark)) != mark:
            parents[mark] = parents[parent]
            mark = parent
        return mark

    for task_marks in marks:
        roots = [find_root(mark) for mark in task_marks]
        for mark in roots:
            parents[mark] = min(roots)
    return [find_root(task_marks[0]) for task_marks in marks]
