"""Decoding caches: stored state for running rows, to decode a token with a single-token forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from marft.common.types import TokenIds
from marft.models.attention import AttentionPlan, DecodePlan, KVCache, PackedPlan
from marft.models.backbone import Backbone
from marft.models.decode_pass import DecodePass, find_decode_pass
from marft.models.native_forward import NativeDecodeCache
from marft.models.packed_rows import PackedRows, PrefixTree
from marft.models.tree_attention import CachedKeyValues, TreePlan

INITIAL_CAPACITY = 64  # cache room for new tokens beyond the longest prompt


class DecodeCache(Protocol):
    """Decoding cache for rows in slots 0..n-1. Filling a slot discards its earlier content."""

    def prefill(self, rows: PackedRows, slots: list[list[int]]) -> Tensor:
        """Prefill rows into slots, row i into every slot in ``slots[i]``; return the hidden states [N, D]."""

    def step(self, ids: Tensor, lengths: Sequence[int], policies: Sequence[str | None]) -> Tensor:
        """Decode one token for each slot 0..n-1; return the hidden states [n, D].

        Args:
            ids: new token ids, [n].
            lengths: cached tokens of each slot, [n].
            policies: adapter name of each row; None: the base model.
        """

    def move(self, source: int, target: int, length: int) -> None:
        """Move the ``length`` tokens in slot ``source`` to slot ``target``; ``source`` is then free."""


def new_decode_cache(backbone: Backbone) -> DecodeCache:
    """Create an empty decoding cache for the backbone's forward mode."""
    return NativeDecodeCache(backbone.decoder, backbone.routing) if backbone.native else PackedDecodeCache(backbone)


def pack_rows(rows: Sequence[TokenIds], policies: Sequence[str | None], backbone: Backbone) -> PackedRows:
    """Pack rows for a forward, as a prefix tree if shared prefixes make it faster."""
    tree = PrefixTree.from_rows(rows, policies)
    if backbone.benefits_from_tree(tree, sum(map(len, rows))):
        return PackedRows.from_tree(tree, backbone.device)
    return PackedRows.from_rows(rows, policies, backbone.device)


class PackedDecodeCache:
    """Decoding cache with a KV cache; a single forward decodes every row."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone, self.kv_cache = backbone, KVCache(backbone.num_layers)
        self._policies: Sequence[str | None] | None = None
        self._decode_pass: DecodePass | None = None

    def prefill(self, rows: PackedRows, slots: list[list[int]], cached: CachedKeyValues | None = None) -> Tensor:
        """Prefill rows into slots; return their hidden states, [N, D].

        Args:
            cached: cached prefixes of the rows in a prefix tree.
        """
        lengths = rows.lengths if rows.tree is None else list(map(len, rows.tree.token_indices))
        self.kv_cache.reserve(1 + max(map(max, slots)), max(lengths) + INITIAL_CAPACITY)
        if rows.tree is None:
            plan: AttentionPlan = PackedPlan(lengths, self.backbone.device, self.kv_cache, slots)
        else:
            plan = TreePlan(rows.tree, self.backbone.device, cached, self.kv_cache, slots)
        return self.backbone.hidden_states(rows, plan)

    def step(self, ids: Tensor, lengths: Sequence[int], policies: Sequence[str | None]) -> Tensor:
        """Decode one token per row; return the hidden states, [n, D]."""
        self.kv_cache.reserve(len(ids), max(lengths) + 1)
        plan = DecodePlan(self.kv_cache, lengths, self.backbone.device)
        decode_pass = None if torch.is_grad_enabled() else self._find_pass(policies)
        if decode_pass is None:
            return self.backbone.next_hidden_states(ids, plan.lengths, policies, plan)
        return decode_pass.hidden_states(ids, plan.lengths, plan)

    def _find_pass(self, policies: Sequence[str | None]) -> DecodePass | None:
        if self._policies is not policies:  # a running batch keeps the same list until a row joins or leaves
            self._policies, self._decode_pass = policies, find_decode_pass(self.backbone, policies)
        return self._decode_pass

    def move(self, source: int, target: int, length: int) -> None:
        """Copy a row's tokens to another slot."""
        self.kv_cache.move(source, target, length)
