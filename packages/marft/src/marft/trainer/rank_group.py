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

from marft.trainer.interfaces import Floats

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

    def on(self, base: str) -> Ranks | None:
        """Those that learn on a base model, the same object for the same ones; None where this one does not."""
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

    def on(self, base: str) -> Alone:  # noqa: ARG002
        """This one learns on all."""
        return self


ALONE = Alone()


def share(ranks: Ranks, items: Sequence[T], size: Callable[[T], int]) -> list[T]:
    """This rank's items, in their order: about as much as any other rank's.

    From the largest on, each goes to who has least so far (Graham 1969), so loads differ by no more than the largest.
    """
    loads, mine = [0] * ranks.count, []
    for index in sorted(range(len(items)), key=lambda index: -size(items[index])):
        least = loads.index(min(loads))
        loads[least] += size(items[index])
        if least == ranks.rank:
            mine.append(index)
    return [items[index] for index in sorted(mine)]


def share_on(ranks: Ranks, items: Sequence[T], size: Callable[[T], int], base_of: Callable[[T], str]) -> list[T]:
    """As :func:`share`, each item among those ranks that learn on its base model."""
    together: dict[int, tuple[Ranks, list[int]]] = {}
    for index, item in enumerate(items):
        here = ranks.on(base_of(item))
        if here is not None:
            together.setdefault(id(here), (here, []))[1].append(index)
    mine = [i for here, indices in together.values() for i in share(here, indices, lambda i: size(items[i]))]
    return [items[i] for i in sorted(mine)]


def total(ranks: Ranks, mine: Floats) -> Floats:
    """Elementwise sum over ranks, in their order: the same bits on each."""
    return reduce(np.add, ranks.gather(mine))


def merged(ranks: Ranks, mine: Mapping[K, V]) -> dict[K, V]:
    """The entries of all ranks."""
    return {key: value for part in ranks.gather(mine) for key, value in part.items()}
