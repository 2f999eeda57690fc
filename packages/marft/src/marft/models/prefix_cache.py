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
from marft.models.kv_cache import KVCache
from marft.models.prefix_tree import common_prefix_length

CacheOwner = tuple[str, str | None]  # pass over tasks, and the adapter of the keys and values


@dataclass(slots=True, eq=False)
class _Edge:
    ids: TokenIds  # [T]
    tensors: list[Tensor]  # keys [K, T, D] for each layer, then the values for each layer, in the order of a cache slot
    parent: _Edge | None
    last_used: int = 0
    children: dict[int, _Edge] = field(default_factory=dict)  # by first token

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def copy_range(self, start: int, stop: int) -> list[Tensor]:
        """Copy a token range of the keys and values."""
        return [tensor[:, start:stop].clone() for tensor in self.tensors]


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """Cached prefix of a row: a path of edges from the root, with the number of tokens used from each edge."""

    parts: tuple[tuple[_Edge, int], ...] = ()

    def __len__(self) -> int:
        return sum(num_tokens for _, num_tokens in self.parts)

    def tensors(self, number: int) -> list[Tensor]:
        """Return a layer's keys or values, [K, T, D] per part.

        Args:
            number: index into the keys of each layer, followed by the values of each layer.
        """
        return [edge.tensors[number][:, :num_tokens] for edge, num_tokens in self.parts]

    def key(self) -> tuple[tuple[int, int], ...]:
        """Return a comparison key, equal for equal prefixes."""
        return tuple((id(edge), num_tokens) for edge, num_tokens in self.parts)


class PrefixCache:
    """Prefix cache with deterministic content: it depends only on the requests and their order.

    Args:
        limit: maximum size of keys and values, in bytes.
        min_length: minimum length of a returned prefix, in tokens.
    """

    def __init__(self, limit: int, min_length: int = 16) -> None:
        self.limit, self.min_length = limit, min_length
        self.size = 0  # bytes in use
        self._roots: dict[CacheOwner, _Edge] = {}
        self._counter = 0

    def find(self, owner: CacheOwner, ids: TokenIds) -> Prefix:
        """Return the longest cached prefix for ``ids[:-1]``.

        The row's last token is excluded, because its hidden state must be computed.
        """
        self._counter += 1
        parts: list[tuple[_Edge, int]] = []
        node, matched = self._roots.get(owner), 0
        while node is not None and matched < len(ids) - 1:
            following = node.children.get(int(ids[matched]))
            if following is None:
                break
            num_shared = common_prefix_length(following.ids, ids[matched : len(ids) - 1])
            parts.append((following, num_shared))
            following.last_used = self._counter
            matched += num_shared
            node = following if num_shared == len(following.ids) else None
        return Prefix(tuple(parts)) if matched >= self.min_length else Prefix()

    def store(self, owner: CacheOwner, ids: TokenIds, cache: KVCache, slot: int) -> None:
        """Cache the first ``len(ids)`` tokens from a cache slot."""
        self._counter += 1
        node, stored = self._roots.setdefault(owner, _Edge(ids[:0], [], None)), 0
        node.last_used = self._counter
        while stored < len(ids):
            following = node.children.get(int(ids[stored]))
            if following is None:
                tensors = cache.read_slot(slot, stored, len(ids))
                self._add_edge(_Edge(ids[stored:].copy(), tensors, node, self._counter))
                return
            following.last_used = self._counter
            num_shared = common_prefix_length(following.ids, ids[stored:])
            node = following if num_shared == len(following.ids) else self._split(following, num_shared)
            stored += num_shared

    def evict_other_passes(self, passes: set[str]) -> None:
        """Evict entries from passes not in ``passes``. The remaining content does not depend on the evicted passes."""
        remaining = {owner: root for owner, root in self._roots.items() if owner[0] in passes}
        if len(remaining) == len(self._roots):
            return
        self._roots = remaining
        self.size = sum(edge.size for root in self._roots.values() for edge in _iter_edges(root))

    def _add_edge(self, edge: _Edge) -> None:
        size = edge.size
        if self._evict(size):
            assert edge.parent is not None
            edge.parent.children[int(edge.ids[0])] = edge
            self.size += size

    def _evict(self, size: int) -> bool:
        """Evict the least recently used leaves, except those in use; return whether ``size`` bytes are free."""
        while size <= self.limit < self.size + size:
            leaves = [edge for root in self._roots.values() for edge in _iter_edges(root) if not edge.children]
            oldest = min(leaves, key=lambda edge: edge.last_used, default=None)
            if oldest is None or oldest.last_used == self._counter or oldest.parent is None:
                return False
            del oldest.parent.children[int(oldest.ids[0])]
            self.size -= oldest.size
        return size <= self.limit

    def _split(self, edge: _Edge, length: int) -> _Edge:
        """Split an edge in two; return the first part."""
        assert edge.parent is not None
        first = _Edge(edge.ids[:length], edge.copy_range(0, length), edge.parent, edge.last_used)
        edge.parent.children[int(edge.ids[0])] = first
        edge.tensors, edge.ids, edge.parent = edge.copy_range(length, len(edge.ids)), edge.ids[length:], first
        first.children[int(edge.ids[0])] = edge
        return first


def concat_prefixes(prefixes: Sequence[Prefix], layers: int) -> tuple[list[Tensor], list[Tensor]]:
    """Concatenate prefixes; return the keys and values by layer, [S, K, D] each."""
    both = [
        torch.cat([part for prefix in prefixes for part in prefix.tensors(number)], 1).transpose(0, 1)
        for number in range(2 * layers)
    ]
    return both[:layers], both[layers:]


def _iter_edges(edge: _Edge) -> Iterator[_Edge]:
    """Yield every edge below a root."""
    pending = [edge]
    while pending:
        following = list(pending.pop().children.values())
        yield from following
        pending += following
