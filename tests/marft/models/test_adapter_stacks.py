"""Stacked adapters with masks of fixed addresses compute what each row's own adapters do."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from marft.models.adapter_stacks import AdapterMasks, AdapterStacks
from marft.models.attention import DecodePlan
from marft.models.backbone import Backbone
from marft.models.decode_cache import PackedDecodeCache
from tests.marft.models.test_decode_pass import general_forward, new_backbone, prefilled

ROWS = 4
IDS = torch.tensor([5, 6, 7, 8])
EQUAL_RANKS = {"left": ("q_proj", "k_proj"), "right": ("v_proj", "down_proj")}  # and "two" is alone on o_proj


@pytest.fixture
def adapted() -> Backbone:
    """Model with four adapters; three of them have the same rank and scale, partly on different layers."""
    backbone = new_backbone()
    for policy, targets in EQUAL_RANKS.items():
        backbone.add_adapter(policy, 4, 8.0, targets, seed=1)
        for adapter in backbone.adapters(policy).values():
            torch.nn.init.normal_(adapter.b, std=0.3)
    return backbone


def masked(backbone: Backbone, cache: PackedDecodeCache, lengths: list[int], masks: AdapterMasks) -> Tensor:
    plan = DecodePlan(cache.kv_cache, lengths, backbone.device)
    return backbone.next_hidden_states(IDS, plan.lengths, masks.rows, plan)


@torch.inference_mode()
def test_rows_have_their_own_adapters_also_after_changes(adapted: Backbone) -> None:
    stacks = AdapterStacks(adapted)
    masks = stacks.new_masks(ROWS, adapted.device)
    cache, lengths = prefilled(adapted, [None] * ROWS)

    def check(policies: Sequence[str | None]) -> Tensor:
        masks.set_rows(policies)
        padded = [*policies, *[None] * (ROWS - len(policies))]
        found = masked(adapted, cache, lengths, masks)
        torch.testing.assert_close(found, general_forward(adapted, cache, IDS, lengths, padded), rtol=1e-5, atol=1e-5)
        return found

    check(["one", "two", "left", "right"])
    check(["right", None, "one"])
    before = check(["left"])
    for adapter in adapted.adapters("left").values():
        adapter.a.mul_(-1.0)
    assert torch.equal(masked(adapted, cache, lengths, masks), before), "not copied yet"
    stacks.refresh(changed_only=True)
    check(["left"])


def test_another_set_of_adapters_needs_other_stacks(adapted: Backbone) -> None:
    stacks = AdapterStacks(adapted)
    assert stacks.is_current(adapted)
    adapted.remove_adapter("left")
    assert not stacks.is_current(adapted)
    stacks = AdapterStacks(adapted)
    adapted.add_adapter("left", 4, 8.0, ("q_proj",), seed=2)
    assert not stacks.is_current(adapted)
