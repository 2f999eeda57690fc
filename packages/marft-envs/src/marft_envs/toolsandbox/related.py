"""Tasks that have something in common, through others too, belong in one split."""

from __future__ import annotations

from collections.abc import Sequence


def related(marks: Sequence[Sequence[str]]) -> list[str]:
    """The group of each task: the least mark of any task that it is related to. Two are related that have a mark in
    common, or are related to the same one.

    Args:
        marks: of each task, at least one.

    >>> related([["of a", "asks 1"], ["of b", "asks 1"], ["of c", "asks 2"]])
    ['asks 1', 'asks 1', 'asks 2']
    """
    above: dict[str, str] = {}

    def top(mark: str) -> str:
        while (over := above.setdefault(mark, mark)) != mark:
            above[mark] = above[over]
            mark = over
        return mark

    for own in marks:
        tops = [top(mark) for mark in own]
        for mark in tops:
            above[mark] = min(tops)
    return [top(own[0]) for own in marks]
