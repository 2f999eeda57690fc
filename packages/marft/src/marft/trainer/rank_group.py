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

from marft.trainer.interfaces import Floats

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

    def gather(self, mine: T) -> list[T]:
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


class Alone:
    """Rank group with a single process."""

    rank = 0
    count = 1

    def gather(self, mine: T) -> list[T]:
        """Return this rank's value in a list."""
        return [mine]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """No-op: the gradients are already complete."""

    def on(self, base: str) -> Alone:  # noqa: ARG002
        """Return this group for every base model."""
        return self


ALONE = Alone()


def share(ranks: Ranks, items: Sequence[T], size: Callable[[T], int]) -> list[T]:
    """Return this rank's share of the items, in their original order, balanced by size.

    Items are assigned from the largest on, each to the rank with the smallest load (Graham 1969). Loads differ by at
    most the largest item.

    Args:
        ranks: ranks that share the items.
        items: items to divide; equal on all ranks.
        size: function that returns the size of an item.
    """
    loads, mine = [0] * ranks.count, []
    for index in sorted(range(len(items)), key=lambda index: -size(items[index])):
        least = loads.index(min(loads))
        loads[least] += size(items[index])
        if least == ranks.rank:
            mine.append(index)
    return [items[index] for index in sorted(mine)]


def share_on(ranks: Ranks, items: Sequence[T], size: Callable[[T], int], base_of: Callable[[T], str]) -> list[T]:
    """Return this rank's share as in :func:`share`, with each item among the ranks of its base model."""
    together: dict[int, tuple[Ranks, list[int]]] = {}
    for index, item in enumerate(items):
        here = ranks.on(base_of(item))
        if here is not None:
            together.setdefault(id(here), (here, []))[1].append(index)
    mine = [i for here, indices in together.values() for i in share(here, indices, lambda i: size(items[i]))]
    return [items[i] for i in sorted(mine)]


def total(ranks: Ranks, mine: Floats) -> Floats:
    """Return the elementwise sum over ranks, in rank order: bitwise equal on each rank."""
    return reduce(np.add, ranks.gather(mine))


def merged(ranks: Ranks, mine: Mapping[K, V]) -> dict[K, V]:
    """Merge the entries from every rank."""
    return {key: value for part in ranks.gather(mine) for key, value in part.items()}
