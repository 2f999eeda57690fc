"""Splitting of work into forwards with bounded size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_batches(items: Sequence[T], length: Callable[[T], int], limit: int) -> list[list[T]]:
    """Group consecutive items into batches with a total length up to ``limit``; a longer item forms its own batch.

    >>> in_batches([3, 4, 9, 1], lambda n: n, 8)
    [[3, 4], [9], [1]]
    """
    batches: list[list[T]] = []
    filled = 0
    for item in items:
        if not batches or filled + length(item) > limit:
            batches.append([])
            filled = 0
        batches[-1].append(item)
        filled += length(item)
    return batches
