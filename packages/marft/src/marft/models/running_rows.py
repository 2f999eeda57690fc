"""What is kept of rows that are being decoded, so that each new token costs a forward of one token."""

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

FIRST_COLUMNS = 64  # room for new tokens beside the longest prompt, before the cache grows


class RunningRows(Protocol):
    """Rows in slots 0..n-1. Whoever fills a slot again forgets what it held."""

    def prefill(self, rows: PackedRows, slots: list[list[int]]) -> Tensor:
        """Read rows into slots, row i into all of ``slots[i]`` → hidden states [N, D]."""

    def step(self, ids: Tensor, lengths: Sequence[int], policies: Sequence[str | None]) -> Tensor:
        """One new token for each of the slots 0..n-1: ``ids`` [n], tokens read before ``lengths`` [n] → [n, D]."""

    def move(self, source: int, target: int, length: int) -> None:
        """Have slot ``target`` hold the ``length`` tokens of slot ``source``, which is not used any more."""


def running_rows(backbone: Backbone) -> RunningRows:
    """Nothing yet, for the forward that the backbone uses."""
    return OwnRows(backbone.decoder, backbone.routing) if backbone.plain else CachedRows(backbone)


def together(rows: Sequence[TokenIds], policies: Sequence[str | None], backbone: Backbone) -> PackedRows:
    """Rows for one forward, as a forest where they have much in common."""
    forest = Forest.of(rows, policies)
    if backbone.gains(forest, sum(map(len, rows))):
        return PackedRows.sharing(forest, backbone.device)
    return PackedRows.of(rows, policies, backbone.device)


class CachedRows:
    """Keys and values in one cache, all rows in one forward."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone, self.cache = backbone, KVCache(backbone.depth)

    def prefill(self, rows: PackedRows, slots: list[list[int]]) -> Tensor:
        self.cache.reserve(1 + max(slot for of_row in slots for slot in of_row), max(rows.lengths) + FIRST_COLUMNS)
        plan = PackedPlan(rows.lengths, self.backbone.device, self.cache, slots)
        return self.backbone.hidden_states(rows, plan)

    def prefill_sharing(self, rows: PackedRows, slots: list[list[int]], known: KnownKeys | None) -> Tensor:
        """Read the rows of a forest, of which ``known`` was computed before, into slots → hidden states [N, D]."""
        assert rows.forest is not None
        longest = max(len(places) for places in rows.forest.places)
        self.cache.reserve(1 + max(slot for of_row in slots for slot in of_row), longest + FIRST_COLUMNS)
        return self.backbone.hidden_states(rows, TreePlan(rows.forest, self.backbone.device, known, self.cache, slots))

    def step(self, ids: Tensor, lengths: Sequence[int], policies: Sequence[str | None]) -> Tensor:
        self.cache.reserve(len(ids), max(lengths) + 1)
        plan = DecodePlan(self.cache, lengths, self.backbone.device)
        return self.backbone.next_hidden_states(ids, plan.lengths, policies, plan)

    def move(self, source: int, target: int, length: int) -> None:
        self.cache.move(source, target, length)
