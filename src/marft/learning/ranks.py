"""The processes that learn from one batch together.

Each holds all episodes of the batch, so advantages, minibatches and denominators are the whole batch's everywhere. What
is divided between them are forward and backward passes: a rank has a share of the actions. Gradients are summed before
a step, and what is decided (the KL stop) is decided on sums, by all or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Protocol, TypeVar

import numpy as np
from torch import nn

from marft.learning.interfaces import Floats

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Ranks(Protocol):
    """This process among those that learn together. All of them make the same calls in the same order."""

    @property
    def rank(self) -> int:
        """0 … count − 1."""
        ...

    @property
    def count(self) -> int: ...

    def gather(self, mine: T) -> list[T]:
        """What every rank gives, by rank."""
        ...

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Each gradient becomes its sum over ranks; a rank without one gives 0."""
        ...


class Alone:
    """One process learns."""

    rank = 0
    count = 1

    def gather(self, mine: T) -> list[T]:
        """Only this one's."""
        return [mine]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """They are the sums."""


ALONE = Alone()


def share(ranks: Ranks, items: Sequence[T], size: Callable[[T], int]) -> list[T]:
    """This rank's items, in their order: about as much of every size as any other rank's.

    From the largest on they are dealt out there and back, so that who has the larger one now has the smaller one next;
    loads differ by no more than the largest item.
    """
    by_size = sorted(range(len(items)), key=lambda index: -size(items[index]))
    rounds = [by_size[start : start + ranks.count] for start in range(0, len(by_size), ranks.count)]
    mine = [
        dealt[place]
        for number, dealt in enumerate(rounds)
        if (place := ranks.count - 1 - ranks.rank if number % 2 else ranks.rank) < len(dealt)
    ]
    return [items[index] for index in sorted(mine)]


def total(ranks: Ranks, mine: Floats) -> Floats:
    """Elementwise sum over ranks, in their order: the same bits on each."""
    return reduce(np.add, ranks.gather(mine))


def merged(ranks: Ranks, mine: Mapping[K, V]) -> dict[K, V]:
    """The entries of all ranks."""
    return {key: value for part in ranks.gather(mine) for key, value in part.items()}
