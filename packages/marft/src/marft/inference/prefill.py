"""Prompt prefill: a single computation for each shared or cached prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from marft.common.types import TokenIds
from marft.models.backbone import Backbone
from marft.models.decode_cache import DecodeCache, PackedDecodeCache
from marft.models.devices import to_device
from marft.models.packed_rows import PackedRows
from marft.models.prefix_cache import Prefix, PrefixCache, concat_prefixes
from marft.models.prefix_tree import PrefixTree, Span
from marft.models.tree_attention import CachedKeyValues


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
        self.prefix_cache = PrefixCache(prefix_bytes) if self.cached_rows is not None and prefix_bytes else None
        self.tokens = tokens or PrefillTokens()

    def run(self, requests: Sequence[PrefillRequest]) -> Tensor:
        """Prefill prompts; return the hidden state at each prompt's last token, [B, D]."""
        prompts, adapters = [request.prompt for request in requests], [request.adapter for request in requests]
        slots = [request.slots for request in requests]
        self.tokens.requested += sum(len(request.prompt) * len(request.slots) for request in requests)
        tree, cached = _build_tree(prompts, adapters, self._find_prefixes(requests))
        total_tokens = sum(map(len, prompts))
        if self.cached_rows is not None and self.backbone.benefits_from_tree(tree, total_tokens):
            self.tokens.computed += len(tree.ids)
            packed = PackedRows.from_tree(tree, self.backbone.device)
            cached_keys = CachedKeyValues(*concat_prefixes(cached, self.backbone.num_layers)) if cached else None
            hidden = self.cached_rows.prefill_tree(packed, slots, cached_keys)
            last = [int(places[-1]) - tree.cached_keys for places in tree.token_indices]
        else:
            self.tokens.computed += total_tokens
            packed = PackedRows.from_rows(prompts, adapters, self.backbone.device)
            hidden = self.decode_cache.prefill(packed, slots)
            last = (np.cumsum(packed.lengths) - 1).tolist()
        for request in requests:
            self.cache_row(request.task_pass, request.adapter, request.prompt, request.slots[0])
        return hidden[to_device(np.array(last), hidden.device)]

    def cache_row(self, task_pass: str, adapter: str | None, ids: TokenIds, slot: int) -> None:
        """Cache the keys and values for ``ids`` from a slot."""
        if self.prefix_cache is not None and self.cached_rows is not None:
            self.prefix_cache.store((task_pass, adapter), ids, self.cached_rows.kv_cache, slot)

    def _find_prefixes(self, requests: Sequence[PrefillRequest]) -> list[Prefix]:
        if self.prefix_cache is None:
            return [Prefix()] * len(requests)
        self.prefix_cache.evict_other_passes({request.task_pass for request in requests})
        return [self.prefix_cache.find((request.task_pass, request.adapter), request.prompt) for request in requests]


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
