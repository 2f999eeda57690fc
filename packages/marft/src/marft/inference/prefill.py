"""Prompt prefill: a single computation for each shared or cached prefix.

The prefix cache keeps the keys and values of computed rows, for rows with the same first ids. Each owner has a radix
tree. An edge holds ids, with the keys and values of their tokens. When memory is short, the least recently used entries
are evicted, leaves before their parents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from marft.common.token_data import common_prefix_length
from marft.common.types import TokenIds
from marft.models.attention import KVCache
from marft.models.backbone import Backbone
from marft.models.decode_cache import DecodeCache, PackedDecodeCache
from marft.models.devices import to_device
from marft.models.packed_rows import PackedRows, PrefixTree, Span
from marft.models.tree_attention import CachedKeyValues

CacheOwner = tuple[str, str | None]  # pass over tasks, and the adapter of the keys and values


@dataclass(slots=True, eq=False)
class _Edge:
    ids: TokenIds  # [T]
    # keys [K, T, D] for each layer, values for each layer, in the order of a cache slot; then any experts, [1, T, L, K]
    tensors: list[Tensor]
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

    def store(self, owner: CacheOwner, ids: TokenIds, cache: KVCache, slot: int, experts: Tensor | None = None) -> None:
        """Cache the first ``len(ids)`` tokens from a cache slot.

        Args:
            experts: their recorded experts, [T, L, K].
        """
        self._counter += 1
        node, stored = self._roots.setdefault(owner, _Edge(ids[:0], [], None)), 0
        node.last_used = self._counter
        while stored < len(ids):
            following = node.children.get(int(ids[stored]))
            if following is None:
                tensors = cache.read_slot(slot, stored, len(ids))
                if experts is not None:
                    tensors.append(experts[None, stored : len(ids)].clone())
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


def pack_row_prefixes(prefixes: Sequence[Prefix], layers: int) -> CachedKeyValues:
    """Concatenate prefixes; return the keys and values by layer, [S, K, D] each."""
    both = [
        torch.cat([part for prefix in prefixes for part in prefix.tensors(number)], 1).transpose(0, 1)
        for number in range(2 * layers)
    ]
    return CachedKeyValues(both[:layers], both[layers:])


def _iter_edges(edge: _Edge) -> Iterator[_Edge]:
    """Yield every edge below a root."""
    pending = [edge]
    while pending:
        following = list(pending.pop().children.values())
        yield from following
        pending += following


@dataclass(frozen=True, slots=True, eq=False)
class PrefillRequest:
    """Prompt with the slots for every row sharing the prompt."""

    task_pass: str
    adapter: str | None
    prompt: TokenIds
    slots: list[int]


@dataclass(slots=True)
class PrefillTokens:
    """Prompt-token counts: total, and actually computed."""

    requested: int = 0
    computed: int = 0


class Prefilled(NamedTuple):
    """Result of a prefill: hidden state at each prompt's last token, [B, D], and recorded experts of each prompt."""

    hidden: Tensor
    experts: list[Tensor | None]  # [T, L, K] each


class Prefill:
    """Prefill prompts into the slots of running rows.

    Sharing depends only on the requests and their order, never on timing. Cached prefixes are reused only within one
    pass over tasks. A resumed run starts its pass with an empty cache.

    Args:
        prefix_bytes: size limit of the prefix cache, in bytes; 0 disables the cache.
        tokens: counters to update; None creates new counters.
    """

    def __init__(
        self, backbone: Backbone, decode_cache: DecodeCache, prefix_bytes: int, tokens: PrefillTokens | None = None
    ) -> None:
        self.backbone, self.decode_cache = backbone, decode_cache
        self.cached_rows = decode_cache if isinstance(decode_cache, PackedDecodeCache) else None
        is_cached = bool(prefix_bytes) and self.cached_rows is not None and not backbone.recurrent
        self.prefix_cache = PrefixCache(prefix_bytes) if is_cached else None
        self.tokens = tokens or PrefillTokens()

    def run(self, requests: Sequence[PrefillRequest]) -> Prefilled:
        """Prefill prompts."""
        prompts, adapters = [request.prompt for request in requests], [request.adapter for request in requests]
        slots = [request.slots for request in requests]
        self.tokens.requested += sum(len(request.prompt) * len(request.slots) for request in requests)
        tree, cached = _build_tree(prompts, adapters, self._find_prefixes(requests))
        total_tokens = sum(map(len, prompts))
        if self.cached_rows is not None and self.backbone.benefits_from_tree(tree, total_tokens):
            self.tokens.computed += len(tree.ids)
            packed = PackedRows.from_tree(tree, self.backbone.device)
            cached_keys = pack_row_prefixes(cached, self.backbone.num_layers) if cached else None
            with self.backbone.record_experts() as log:
                hidden = self.cached_rows.prefill(packed, slots, cached_keys)
            last = [int(places[-1]) - tree.cached_keys for places in tree.token_indices]
        else:
            self.tokens.computed += total_tokens
            packed, cached = PackedRows.from_rows(prompts, adapters, self.backbone.device), []
            with self.backbone.record_experts() as log:
                hidden = self.decode_cache.prefill(packed, slots)
            last = (np.cumsum(packed.lengths) - 1).tolist()
        experts = _split_experts(log.table(), packed, cached)
        for request, selected in zip(requests, experts, strict=True):
            self.cache_row(request.task_pass, request.adapter, request.prompt, request.slots[0], selected)
        return Prefilled(hidden[to_device(np.array(last), hidden.device)], experts)

    def cache_row(
        self, task_pass: str, adapter: str | None, ids: TokenIds, slot: int, experts: Tensor | None = None
    ) -> None:
        """Cache the keys and values for ``ids`` from a slot, with their recorded experts, [T, L, K]."""
        if self.prefix_cache is not None and self.cached_rows is not None:
            self.prefix_cache.store((task_pass, adapter), ids, self.cached_rows.kv_cache, slot, experts)

    def _find_prefixes(self, requests: Sequence[PrefillRequest]) -> list[Prefix]:
        if self.prefix_cache is None:
            return [Prefix()] * len(requests)
        self.prefix_cache.evict_other_passes({request.task_pass for request in requests})
        return [self.prefix_cache.find((request.task_pass, request.adapter), request.prompt) for request in requests]


def _split_experts(table: Tensor | None, rows: PackedRows, cached: Sequence[Prefix]) -> list[Tensor | None]:
    """Return the experts of each row, [T, L, K]: of its cached prefix, as recorded once, and of its computed tokens.

    Args:
        table: recorded experts of the forward, [N, L, K].
        cached: cached prefixes of the rows in a prefix tree.
    """
    indices = rows.token_indices()
    if table is None:
        return [None] * len(indices)
    parts = [part[0] for prefix in cached for part in prefix.tensors(-1)]
    known = torch.cat([*parts, table])
    return [known[to_device(places, known.device)] for places in indices]


def _build_tree(
    prompts: Sequence[TokenIds], adapters: Sequence[str | None], prefixes: Sequence[Prefix]
) -> tuple[PrefixTree, list[Prefix]]:
    """Build a prefix tree for the prompts; return it with the cached prefixes, each listed once."""
    spans: dict[tuple[tuple[int, int], ...], Span] = {}
    cached: list[Prefix] = []
    keys = 0
    for prefix in prefixes:
        if prefix and prefix.key() not in spans:
            spans[prefix.key()] = (keys, keys + len(prefix))
            cached.append(prefix)
            keys += len(prefix)
    return PrefixTree.from_rows(
        prompts, adapters, [spans.get(prefix.key(), (0, 0)) for prefix in prefixes], keys
    ), cached
