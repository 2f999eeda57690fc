"""Decoding caches: stored state for running rows, to decode a token with a single-token forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from marft.common.types import TokenIds
from marft.models.attention import DecodePlan, PackedPlan
from marft.models.backbone import Backbone
from marft.models.cache import KVCache
from marft.models.forest import Forest
from marft.models.own_forward import OwnRows
from marft.models.packed_rows import PackedRows
from marft.models.tree_attention import KnownKeys, TreePlan

FIRST_COLUMNS = 64  # cache room for new tokens beyond the longest prompt


class RunningRows(Protocol):
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


def running_rows(backbone: Backbone) -> RunningRows:
    """Create an empty decoding cache for the backbone's forward mode."""
    return OwnRows(backbone.decoder, backbone.routing) if backbone.plain else CachedRows(backbone)


def together(rows: Sequence[TokenIds], policies: Sequence[str | None], backbone: Backbone) -> PackedRows:
    """Pack rows for a forward, as a prefix tree if shared prefixes make it faster."""
    forest = Forest.of(rows, policies)
    if backbone.gains(forest, sum(map(len, rows))):
        return PackedRows.sharing(forest, backbone.device)
    return PackedRows.of(rows, policies, backbone.device)


class CachedRows:
    """Decoding cache with a KV cache; a single forward decodes every row."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone, self.cache = backbone, KVCache(backbone.depth)

    def prefill(self, rows: PackedRows, slots: list[list[int]]) -> Tensor:
        """Prefill rows into slots; return their hidden states, [N, D]."""
        self.cache.reserve(1 + max(slot for of_row in slots for slot in of_row), max(rows.lengths) + FIRST_COLUMNS)
        plan = PackedPlan(rows.lengths, self.backbone.device, self.cache, slots)
        return self.backbone.hidden_states(rows, plan)

    def prefill_sharing(self, rows: PackedRows, slots: list[list[int]], known: KnownKeys | None) -> Tensor:
        """Prefill a prefix tree with cached prefixes ``known`` into slots; return the hidden states [N, D]."""
        assert rows.forest is not None
        longest = max(len(places) for places in rows.forest.places)
        self.cache.reserve(1 + max(slot for of_row in slots for slot in of_row), longest + FIRST_COLUMNS)
        return self.backbone.hidden_states(rows, TreePlan(rows.forest, self.backbone.device, known, self.cache, slots))

    def step(self, ids: Tensor, lengths: Sequence[int], policies: Sequence[str | None]) -> Tensor:
        """Decode one token per row; return the hidden states, [n, D]."""
        self.cache.reserve(len(ids), max(lengths) + 1)
        plan = DecodePlan(self.cache, lengths, self.backbone.device)
        return self.backbone.next_hidden_states(ids, plan.lengths, policies, plan)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy a row's tokens to another slot."""
        self.cache.move(source, target, length)
