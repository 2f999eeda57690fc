"""Keys and values of rows that were computed, so that rows which begin with the same ids need only compute the rest.

A radix tree an owner: an edge has ids, and the keys and values of their tokens. Where memory is short, what was used
longest ago goes first, leaves before what they grow from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from marft.common.types import TokenIds
from marft.models.cache import KVCache
from marft.models.forest import common

Owner = tuple[str, str | None]  # a pass over tasks, and the adapter that keys and values were computed with


@dataclass(slots=True, eq=False)
class _Edge:
    ids: TokenIds  # [T]
    tensors: list[Tensor]  # of each layer, keys [K, T, D] and then values, so that they are those of a slot
    above: _Edge | None
    used: int = 0
    below: dict[int, _Edge] = field(default_factory=dict)  # by first token

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def cut(self, start: int, stop: int) -> list[Tensor]:
        return [tensor[:, start:stop].clone() for tensor in self.tensors]


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """What a row begins with and was computed before: edges from the root, and how many tokens of each it has."""

    parts: tuple[tuple[_Edge, int], ...] = ()

    def __len__(self) -> int:
        return sum(taken for _, taken in self.parts)

    def tensors(self, number: int) -> list[Tensor]:
        """Keys or values of a layer, [K, T, D] a part; ``number`` counts all layers' keys, then values."""
        return [edge.tensors[number][:, :taken] for edge, taken in self.parts]

    def key(self) -> tuple[tuple[int, int], ...]:
        """Equal where prefixes are the same."""
        return tuple((id(edge), taken) for edge, taken in self.parts)


class Prefixes:
    """What is kept depends on what was asked for, in which order, and on nothing else.

    Args:
        limit: bytes that keys and values may take.
        least: tokens from which on a prefix is worth to be found.
    """

    def __init__(self, limit: int, least: int = 16) -> None:
        self.limit, self.least = limit, least
        self.size = 0  # bytes that are taken
        self._roots: dict[Owner, _Edge] = {}
        self._clock = 0

    def find(self, owner: Owner, ids: TokenIds) -> Prefix:
        """The longest prefix of ``ids[:-1]`` that is here: of a row's last token the hidden state is asked for."""
        self._clock += 1
        parts: list[tuple[_Edge, int]] = []
        at, done = self._roots.get(owner), 0
        while at is not None and done < len(ids) - 1:
            following = at.below.get(int(ids[done]))
            if following is None:
                break
            taken = common(following.ids, ids[done : len(ids) - 1])
            parts.append((following, taken))
            following.used = self._clock
            done += taken
            at = following if taken == len(following.ids) else None
        return Prefix(tuple(parts)) if done >= self.least else Prefix()

    def keep(self, owner: Owner, ids: TokenIds, cache: KVCache, slot: int) -> None:
        """Remember the first ``len(ids)`` tokens of a cache's slot."""
        self._clock += 1
        at, done = self._roots.setdefault(owner, _Edge(ids[:0], [], None)), 0
        at.used = self._clock
        while done < len(ids):
            following = at.below.get(int(ids[done]))
            if following is None:
                tensors = cache.of_slot(slot, done, len(ids))
                self._add(_Edge(ids[done:].copy(), tensors, at, self._clock))
                return
            following.used = self._clock
            taken = common(following.ids, ids[done:])
            at = following if taken == len(following.ids) else self._split(following, taken)
            done += taken

    def forget_others(self, passes: set[str]) -> None:
        """Forget what other passes over tasks have left: what is here is then the same as if they had not been."""
        left = {owner: root for owner, root in self._roots.items() if owner[0] in passes}
        if len(left) == len(self._roots):
            return
        self._roots = left
        self.size = sum(edge.size for root in self._roots.values() for edge in _all(root))

    def _add(self, edge: _Edge) -> None:
        size = edge.size
        if self._make_room(size):
            assert edge.above is not None
            edge.above.below[int(edge.ids[0])] = edge
            self.size += size

    def _make_room(self, size: int) -> bool:
        """Let leaves go, the longest unused first, but none that is in use now → whether there is room."""
        while size <= self.limit < self.size + size:
            leaves = [edge for root in self._roots.values() for edge in _all(root) if not edge.below]
            oldest = min(leaves, key=lambda edge: edge.used, default=None)
            if oldest is None or oldest.used == self._clock or oldest.above is None:
                return False
            del oldest.above.below[int(oldest.ids[0])]
            self.size -= oldest.size
        return size <= self.limit

    def _split(self, edge: _Edge, length: int) -> _Edge:
        """Cut an edge in two → the first half."""
        assert edge.above is not None
        first = _Edge(edge.ids[:length], edge.cut(0, length), edge.above, edge.used)
        edge.above.below[int(edge.ids[0])] = first
        edge.tensors, edge.ids, edge.above = edge.cut(length, len(edge.ids)), edge.ids[length:], first
        first.below[int(edge.ids[0])] = edge
        return first


def joined(prefixes: Sequence[Prefix], layers: int) -> tuple[list[Tensor], list[Tensor]]:
    """Keys and values of several prefixes one after the other, by layer, [S, K, D] each."""
    both = [
        torch.cat([part for prefix in prefixes for part in prefix.tensors(number)], 1).transpose(0, 1)
        for number in range(2 * layers)
    ]
    return both[:layers], both[layers:]


def _all(edge: _Edge) -> Iterator[_Edge]:
    """All edges below a root."""
    waiting = [edge]
    while waiting:
        following = list(waiting.pop().below.values())
        yield from following
        waiting += following
