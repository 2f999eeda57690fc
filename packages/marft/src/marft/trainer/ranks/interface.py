"""Rank group for training on a shared batch.

Each rank holds all episodes of the batch. Advantages, minibatches and denominators therefore cover the whole batch on
every rank. Only forward and backward passes are divided: each rank processes a share of the actions. Gradients are
summed before an optimizer step. Decisions (the KL stop) use sums, so all ranks decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Protocol, TypeVar

import numpy as np
from torch import nn

from marft.config.interfaces.credit import Floats

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Ranks(Protocol):
    """Rank group from this process's view; every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Index of this rank, from 0 to ``count − 1``."""
        ...

    @property
    def count(self) -> int:
        """Number of ranks."""
        ...

    def gather(self, value: T) -> list[T]:
        """Gather a value from every rank, in rank order."""
        ...

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its sum over ranks; a missing gradient counts as 0."""
        ...

    def on(self, base: str) -> Ranks | None:
        """Return the ranks that train a base model; None if this rank does not.

        Equal sets of ranks give the same object.
        """
        ...


class SingleRank:
    """Rank group with a single process."""

    rank = 0
    count = 1

    def gather(self, value: T) -> list[T]:
        """Return this rank's value in a list."""
        return [value]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """No-op: the gradients are already complete."""

    def on(self, base: str) -> SingleRank:  # noqa: ARG002
        """Return this group for every base model."""
        return self


SINGLE_RANK = SingleRank()


def split_share(ranks: Ranks | None, items: Sequence[T], size: Callable[[T], int]) -> list[T]:
    """Return this rank's share of the items, in their original order, balanced by size.

    Items are assigned from the largest on, each to the rank with the smallest load (Graham 1969). Loads differ by at
    most the largest item.

    Args:
        ranks: ranks that share the items; None gives this rank no share.
        items: items to divide; equal on all ranks.
        size: function that returns the size of an item.
    """
    if ranks is None:
        return []
    loads, own_items = [0] * ranks.count, []
    for index in sorted(range(len(items)), key=lambda index: -size(items[index])):
        least = loads.index(min(loads))
        loads[least] += size(items[index])
        if least == ranks.rank:
            own_items.append(index)
    return [items[index] for index in sorted(own_items)]


def split_share_by_base(
    ranks: Ranks, items: Sequence[T], size: Callable[[T], int], base_of: Callable[[T], str]
) -> list[T]:
    """Return this rank's share as in :func:`split_share`, with each item among the ranks of its base model."""
    by_group: dict[int, tuple[Ranks | None, list[int]]] = {}
    for index, item in enumerate(items):
        base_ranks = ranks.on(base_of(item))
        by_group.setdefault(id(base_ranks), (base_ranks, []))[1].append(index)
    own_indices = [
        i
        for base_ranks, indices in by_group.values()
        for i in split_share(base_ranks, indices, lambda i: size(items[i]))
    ]
    return [items[i] for i in sorted(own_indices)]


def sum_over_ranks(ranks: Ranks, values: Floats) -> Floats:
    """Return the elementwise sum over ranks, in rank order: bitwise equal on each rank."""
    return reduce(np.add, ranks.gather(values))


def merge_over_ranks(ranks: Ranks, entries: Mapping[K, V]) -> dict[K, V]:
    """Merge the entries from every rank."""
    return {key: value for part in ranks.gather(entries) for key, value in part.items()}
