"""Groups of related tasks, for splits without overlap."""

from __future__ import annotations

from collections.abc import Sequence


def related(marks: Sequence[Sequence[str]]) -> list[str]:
    """Return each task's group: the smallest mark among its related tasks.

    Two tasks are related if they share a mark, or if both are related to a third task.

    Args:
        marks: marks of each task, at least one.

    >>> related([["of a", "asks 1"], ["of b", "asks 1"], ["of c", "asks 2"]])
    ['asks 1', 'asks 1', 'asks 2']
    """
    above: dict[str, str] = {}

    def top(mark: str) -> str:
        """Return the root of a mark, with path compression."""
        while (over := above.setdefault(mark, mark)) != mark:
            above[mark] = above[over]
            mark = over
        return mark

    for own in marks:
        tops = [top(mark) for mark in own]
        for mark in tops:
            above[mark] = min(tops)
    return [top(own[0]) for own in marks]
