"""The decode pass with weights looked up in advance equals the general forward, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from marft.models.attention import DecodePlan, register_attention
from marft.models.backbone import Backbone
from marft.models.decode_cache import PackedDecodeCache
from marft.models.decode_pass import find_decode_pass
from marft.models.packed_rows import PackedRows

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 90,
    "num_hidden_layers": 2,
}  # fmt: skip
FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "biases": lambda: Qwen2Config(**SIZES),
    "norms of queries and keys": lambda: Qwen3Config(**SIZES, head_dim=8),
    "window": lambda: MistralConfig(**SIZES, sliding_window=6),
}
WITHOUT_PASS = {"another activation": lambda: LlamaConfig(**SIZES, hidden_act="gelu")}
TARGETS = {"one": ("q_proj", "v_proj", "down_proj"), "two": ("q_proj", "o_proj", "gate_proj", "up_proj")}


def new_backbone(family: str = "llama", dtype: torch.dtype = torch.float32) -> Backbone:
    """Return a random model with two adapters of different ranks on different layers."""
    torch.manual_seed(0)
    register_attention()
    config = (FAMILIES | WITHOUT_PASS)[family]()
    model = AutoModelForCausalLM.from_config(config, attn_implementation="marft", dtype=dtype).requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    backbone = Backbone(model.eval(), 64)
    for rank, (policy, targets) in enumerate(TARGETS.items(), 3):
        backbone.add_adapter(policy, rank, 8.0, targets, seed=0)
        for adapter in backbone.adapters(policy).values():
            torch.nn.init.normal_(adapter.b, std=0.3)
    return backbone


def prefilled(backbone: Backbone, policies: Sequence[str | None]) -> tuple[PackedDecodeCache, list[int]]:
    """Return a cache with a random prompt for each row, and the prompts' lengths."""
    rows = [torch.randint(3, 90, (3 + 2 * number,)).numpy() for number in range(len(policies))]
    cache = PackedDecodeCache(backbone)
    cache.prefill(PackedRows.from_rows(rows, policies, backbone.device), [[slot] for slot in range(len(rows))])
    return cache, [len(row) for row in rows]


def general_forward(
    backbone: Backbone, cache: PackedDecodeCache, ids: Tensor, lengths: list[int], policies: Sequence[str | None]
) -> Tensor:
    plan = DecodePlan(cache.kv_cache, lengths, backbone.device)
    return backbone.next_hidden_states(ids, plan.lengths, policies, plan)


@pytest.mark.parametrize("policies", [[None] * 3, ["one"] * 4, ["two", "one", None, "one", "two"]], ids=str)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_results_are_those_of_the_general_forward(family: str, policies: list[str | None]) -> None:
    backbone = new_backbone(family)
    with torch.inference_mode():
        cache, lengths = prefilled(backbone, policies)
        ids = torch.randint(3, 90, (len(policies),))
        expected = general_forward(backbone, cache, ids, lengths, policies)
        decode_pass = find_decode_pass(backbone, policies)
        assert decode_pass is not None
        plan = DecodePlan(cache.kv_cache, lengths, backbone.device)
        assert torch.equal(decode_pass.hidden_states(ids, plan.lengths, plan), expected)
        assert torch.equal(cache.step(ids, lengths, policies), expected)


def test_a_cache_looks_adapters_up_again_when_rows_change() -> None:
    backbone = new_backbone()
    with torch.inference_mode():
        first, ids = ["one", "two", None], torch.tensor([5, 6, 7])
        cache, lengths = prefilled(backbone, first)
        before = cache.step(ids, lengths, first)
        swapped = ["two", "one", None]
        assert torch.equal(cache.step(ids, lengths, swapped), general_forward(backbone, cache, ids, lengths, swapped))
        for adapter in backbone.adapters("one").values():
            adapter.b.mul_(2.0)
        again = list(first)
        after = cache.step(ids, lengths, again)
        assert torch.equal(after, general_forward(backbone, cache, ids, lengths, again))
        assert [torch.equal(*rows) for rows in zip(after, before, strict=True)] == [False, True, True]


def test_adapters_of_equal_rank_on_different_layers_keep_their_rows() -> None:
    backbone = new_backbone()
    for policy, targets in (("left", ("q_proj", "up_proj")), ("right", ("v_proj", "down_proj"))):
        backbone.add_adapter(policy, 4, 8.0, targets, seed=1)
        for adapter in backbone.adapters(policy).values():
            torch.nn.init.normal_(adapter.b, std=0.3)
    policies = ["left", "right", None, "left"]
    with torch.inference_mode():
        cache, lengths = prefilled(backbone, policies)
        ids = torch.tensor([5, 6, 7, 8])
        assert torch.equal(cache.step(ids, lengths, policies), general_forward(backbone, cache, ids, lengths, policies))


@pytest.mark.parametrize("size", [0, 32], ids=["", "padded"])
@pytest.mark.parametrize("family", ["llama", "another activation"])
def test_hidden_states_equal_those_of_the_models_own_modules(family: str, size: int) -> None:
    backbone = new_backbone(family)
    for layer in backbone.decoder.layers:  # small numbers would be in the range where activations are alike
        layer.mlp.gate_proj.base.weight.data.mul_(50.0)
    rows = [torch.randint(3, 90, (length,)).numpy() for length in (3, 9, 5)]
    packed = PackedRows.from_rows(rows, ["one", None, "two"], backbone.device, size)
    fused = backbone.hidden_states(packed)
    assert backbone.fused
    backbone.use_slower_forward()
    torch.testing.assert_close(fused[:17], backbone.hidden_states(packed)[:17], rtol=1e-4, atol=1e-4)


def test_trained_weights_half_precision_and_other_activations_take_the_general_forward() -> None:
    backbone = new_backbone()
    assert find_decode_pass(backbone, ["one"]) is not None
    backbone.decoder.layers[1].mlp.up_proj.base.weight.requires_grad_()
    assert find_decode_pass(backbone, ["one"]) is None
    half = new_backbone(dtype=torch.bfloat16)
    assert find_decode_pass(half, ["one"]) is None
    for policy in TARGETS:  # whose weights are float32
        half.remove_adapter(policy)
    assert find_decode_pass(half, [None]) is None
    other = new_backbone("another activation")
    assert other.fused
    assert find_decode_pass(other, ["one"]) is None
    slower = new_backbone()
    slower.use_slower_forward()
    assert find_decode_pass(slower, ["one"]) is None
