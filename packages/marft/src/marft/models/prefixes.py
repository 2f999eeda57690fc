"""Prefix cache: keys and values of computed rows, for rows with the same first ids.

Each owner has a radix tree. An edge holds ids, with the keys and values of their tokens. When memory is short, the
least recently used entries are evicted, leaves before their parents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from marft.common.types import TokenIds
from marft.models.cache import KVCache
from marft.models.forest import common

Owner = tuple[str, str | None]  # pass over tasks, and the adapter of the keys and values


@dataclass(slots=True, eq=False)
class _Edge:
    ids: TokenIds  # [T]
    tensors: list[Tensor]  # keys [K, T, D] for each layer, then the values for each layer, in the order of a cache slot
    above: _Edge | None
    used: int = 0
    below: dict[int, _Edge] = field(default_factory=dict)  # by first token

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def cut(self, start: int, stop: int) -> list[Tensor]:
        """Copy a token range of the keys and values."""
        return [tensor[:, start:stop].clone() for tensor in self.tensors]


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """Cached prefix of a row: a path of edges from the root, with the number of tokens used from each edge."""

    parts: tuple[tuple[_Edge, int], ...] = ()

    def __len__(self) -> int:
        return sum(taken for _, taken in self.parts)

    def tensors(self, number: int) -> list[Tensor]:
        """Return a layer's keys or values, [K, T, D] per part.

        Args:
            number: index into the keys of each layer, followed by the values of each layer.
        """
        return [edge.tensors[number][:, :taken] for edge, taken in self.parts]

    def key(self) -> tuple[tuple[int, int], ...]:
        """Return a comparison key, equal for equal prefixes."""
        return tuple((id(edge), taken) for edge, taken in self.parts)


class Prefixes:
    """Prefix cache with deterministic content: it depends only on the requests and their order.

    Args:
        limit: maximum size of keys and values, in bytes.
        least: minimum length of a returned prefix, in tokens.
    """

    def __init__(self, limit: int, least: int = 16) -> None:
        self.limit, self.least = limit, least
        self.size = 0  # bytes in use
        self._roots: dict[Owner, _Edge] = {}
        self._clock = 0

    def find(self, owner: Owner, ids: TokenIds) -> Prefix:
        """Return the longest cached prefix for ``ids[:-1]``.

        The row's last token is excluded, because its hidden state must be computed.
        """
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
        """Cache the first ``len(ids)`` tokens from a cache slot."""
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
        """Evict entries from passes not in ``passes``. The remaining content does not depend on the evicted passes."""
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
        """Evict the least recently used leaves, except those in use; return whether ``size`` bytes are free."""
        while size <= self.limit < self.size + size:
            leaves = [edge for root in self._roots.values() for edge in _all(root) if not edge.below]
            oldest = min(leaves, key=lambda edge: edge.used, default=None)
            if oldest is None or oldest.used == self._clock or oldest.above is None:
                return False
            del oldest.above.below[int(oldest.ids[0])]
            self.size -= oldest.size
        return size <= self.limit

    def _split(self, edge: _Edge, length: int) -> _Edge:
        """Split an edge in two; return the first part."""
        assert edge.above is not None
        first = _Edge(edge.ids[:length], edge.cut(0, length), edge.above, edge.used)
        edge.above.below[int(edge.ids[0])] = first
        edge.tensors, edge.ids, edge.above = edge.cut(length, len(edge.ids)), edge.ids[length:], first
        first.below[int(edge.ids[0])] = edge
        return first


def joined(prefixes: Sequence[Prefix], layers: int) -> tuple[list[Tensor], list[Tensor]]:
    """Concatenate prefixes; return the keys and values by layer, [S, K, D] each."""
    both = [
        torch.cat([part for prefix in prefixes for part in prefix.tensors(number)], 1).transpose(0, 1)
        for number in range(2 * layers)
    ]
    return both[:layers], both[layers:]


def _all(edge: _Edge) -> Iterator[_Edge]:
    """Yield every edge below a root."""
    waiting = [edge]
    while waiting:
        following = list(waiting.pop().below.values())
        yield from following
        waiting += following
