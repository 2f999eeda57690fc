"""Splitting of work into forwards with bounded size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def split_batches(items: Sequence[T], length: Callable[[T], int], limit: int) -> list[list[T]]:
    """Group consecutive items into batches with a total length up to ``limit``; a longer item forms its own batch.

    >>> split_batches([3, 4, 9, 1], lambda n: n, 8)
    [[3, 4], [9], [1]]
    """
    batches: list[list[T]] = []
    total_length = 0
    for item in items:
        if not batches or total_length + length(item) > limit:
            batches.append([])
            total_length = 0
        batches[-1].append(item)
        total_length += length(item)
    return batches
