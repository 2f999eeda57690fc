"""Replayed experts: nothing changes if they are the router's own; others are used, and their weights get a gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tools.model_families import build_small_backbone
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM, PhimoeConfig, PreTrainedTokenizerBase

from marft.common.errors import UserError
from marft.common.token_data import ExpertTable
from marft.config.models import ModelSettings
from marft.models.attention import register_attention
from marft.models.backbone import Backbone
from marft.models.loader import load_backbone
from marft.models.packed_rows import PackedRows, PrefixTree
from tests.families import EXPERTS, FAMILY
from tests.mixtures import CPU, loaded, mixture
from tests.nights import some

ROWS = [(np.arange(2, n + 2) ** 3 * 7 % 96).astype(np.int32) for n in (3, 23, 11)]
FAST = ("Qwen 3 with experts", "gpt-oss", "DeepSeek 3 with expert groups")
EACH = [
    pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
    for name in [*FAST, *some([name for name in EXPERTS if name not in FAST])]
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerBase) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def folder_of(name: str) -> Path:
        if name not in made:
            made[name] = mixture(name, tmp_path_factory.mktemp("mixture"), tiny_tokenizer)
        return made[name]

    return folder_of


def packed(rows: list[np.ndarray], experts: list[ExpertTable]) -> PackedRows:
    return PackedRows.from_rows(rows, [None] * len(rows), CPU, experts=experts)


@torch.no_grad()
def recorded(backbone: Backbone, rows: list[np.ndarray], experts: list[ExpertTable] = []) -> list[ExpertTable]:  # noqa: B006
    with backbone.record_experts() as log:
        backbone.hidden_states(packed(rows, experts))
    table = log.table()
    assert table is not None
    return np.split(table.numpy(), np.cumsum([len(row) for row in rows])[:-1])


def others(backbone: Backbone, tables: list[ExpertTable]) -> list[ExpertTable]:
    """Experts that the routers did not select."""
    assert backbone.router_replay is not None
    return [(table + 1) % backbone.router_replay.num_experts[0] for table in tables]


def gradients(backbone: Backbone, rows: PackedRows) -> tuple[Tensor, list[Tensor]]:
    backbone.model.zero_grad()
    backbone.model.requires_grad_(True)
    hidden = backbone.hidden_states(rows)
    (hidden * torch.linspace(-1, 1, hidden.shape[1])).sum().backward()
    return hidden.detach(), [p.grad for p in backbone.model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", EACH)
def test_the_routers_own_experts_change_no_bit_of_results_and_gradients(
    name: str, folders: Callable[[str], Path]
) -> None:
    backbone = loaded(folders(name))
    own = recorded(backbone, ROWS)
    plain, replayed = (gradients(backbone, packed(ROWS, experts)) for experts in ([], own))
    assert torch.equal(plain[0], replayed[0])
    assert len(plain[1]) == len(replayed[1])
    assert all(torch.equal(first, second) for first, second in zip(plain[1], replayed[1], strict=True))


def test_a_record_ends_with_its_forward(folders: Callable[[str], Path]) -> None:
    backbone = loaded(folders(FAST[0]))
    with torch.no_grad(), backbone.record_experts() as log:
        backbone.hidden_states(packed(ROWS, []))
    layers = len(log.layers)
    with torch.no_grad():
        backbone.hidden_states(packed(ROWS, []))
    assert len(log.layers) == layers == len(_blocks(backbone))


@pytest.mark.parametrize("name", EACH)
def test_with_other_routers_the_recorded_experts_are_used(name: str, folders: Callable[[str], Path]) -> None:
    backbone = loaded(folders(name))
    own = recorded(backbone, ROWS)
    with torch.no_grad():
        for _, block in _blocks(backbone):
            _router(block).weight.add_(torch.randn_like(_router(block).weight))
    assert any((first != second).any() for first, second in zip(recorded(backbone, ROWS), own, strict=True))
    for tables in (own, others(backbone, own)):
        for found, wanted in zip(recorded(backbone, ROWS, tables), tables, strict=True):
            assert np.array_equal(found, wanted)


def _blocks(backbone: Backbone) -> list[tuple[int, Any]]:
    layers = [getattr(layer, "mlp", None) or layer.block_sparse_moe for layer in backbone.decoder.layers]
    return [(index, block) for index, block in enumerate(layers) if hasattr(block, "experts")]


def _router(block: Any) -> Any:
    return block.router if hasattr(block, "router") else block.gate


def _slow_block(name: str, block: Any, x_ND: Tensor, experts_NK: ExpertTable) -> Tensor:
    """The formula of each family, token by token, over the experts that are given."""
    router, parts = _router(block), []
    for x, selected in zip(x_ND, experts_NK.tolist(), strict=True):
        scores = linear(x, router.weight, getattr(router, "bias", None))
        if name == "gpt-oss":
            weights = scores[selected].softmax(0)
        elif name == "Qwen 3 with experts":
            weights = scores.softmax(0)[selected]
            if router.norm_topk_prob:
                weights = weights / weights.sum()
        else:
            weights = scores.sigmoid()[selected]
            weights = weights / (weights.sum() + 1e-20) * router.routed_scaling_factor
        part = torch.zeros_like(x)
        for weight, number in zip(weights, selected, strict=True):
            part = part + weight * _slow_expert(name, block.experts, x, number)
        parts.append(part)
    out = torch.stack(parts)
    return out + block.shared_experts(x_ND) if hasattr(block, "shared_experts") else out


def _slow_expert(name: str, experts: Any, x: Tensor, number: int) -> Tensor:
    if name == "gpt-oss":
        both = x @ experts.gate_up_proj[number] + experts.gate_up_proj_bias[number]
        gate, up = both[::2].clamp(max=experts.limit), both[1::2].clamp(-experts.limit, experts.limit)
        hidden = (up + 1) * gate * torch.sigmoid(experts.alpha * gate)
        return hidden @ experts.down_proj[number] + experts.down_proj_bias[number]
    gate, up = linear(x, experts.gate_up_proj[number]).chunk(2)
    return linear(nn.functional.silu(gate) * up, experts.down_proj[number])


@pytest.mark.parametrize("name", FAST)
def test_results_and_gradients_with_other_experts_equal_a_slow_reference(
    name: str, folders: Callable[[str], Path]
) -> None:
    """The reference in float64."""
    backbone = loaded(folders(name))
    block = _blocks(backbone)[-1][1]
    exact = _blocks(loaded(folders(name)))[-1][1].double()
    torch.manual_seed(1)
    x = torch.randn(9, 32, dtype=torch.float64)
    experts = np.stack([np.random.default_rng(n).permutation(8)[:2] for n in range(9)]).astype(np.int16)
    table = np.full((9, len(_blocks(backbone)), 2), -1, np.int16)
    table[:, -1] = experts
    results = []
    for module in (exact, block):
        module.requires_grad_(True)
        inputs = x.detach().clone().to(next(module.parameters()).dtype).requires_grad_()
        with backbone.routing.by_span([(None, 0, 9)], 9, experts=torch.from_numpy(table)):
            out = _slow_block(name, module, inputs, experts) if module is exact else module(inputs[None])
        out = (out[0] if isinstance(out, tuple) else out).view(9, -1)
        (out * torch.linspace(-1, 2, 32, dtype=out.dtype)).sum().backward()
        grads = [inputs.grad, *(p.grad for p in module.parameters())]
        results.append([out.detach(), *(grad for grad in grads if grad is not None)])
    for reference, found in zip(*results, strict=True):
        torch.testing.assert_close(found.double(), reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FAST[:1])
def test_rows_share_a_prefix_exactly_where_their_experts_are_equal(name: str, folders: Callable[[str], Path]) -> None:
    backbone = loaded(folders(name))
    rows = [np.concatenate([ROWS[1], row]) for row in ROWS]
    own = recorded(backbone, rows)
    own[2][10:] = others(backbone, [own[2][10:]])[0]
    tree = PrefixTree.from_replayed_rows(rows, [None] * 3, own)
    assert len(tree.ids) == 2 * 23 + (13 + 11)  # the first row is the beginning of the second
    assert backbone.router_replay is not None
    together = PackedRows.from_tree(tree, CPU, size=96)
    alone, plain = gradients(backbone, packed(rows, own)), gradients(backbone, packed(rows, []))
    for checkpointed in (False, True):
        if checkpointed:
            backbone.checkpoint_activations()
        backbone.model.zero_grad()
        hidden = backbone.hidden_states(together)
        places = np.concatenate(together.token_indices())
        shared = hidden[torch.from_numpy(places)]
        torch.testing.assert_close(shared, alone[0], rtol=1e-4, atol=1e-5)
        (shared * torch.linspace(-1, 1, 32)).sum().backward()
        found = [p.grad for p in backbone.model.parameters() if p.grad is not None]
        for gradient, wanted in zip(found, alone[1], strict=True):
            torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-4)
    assert (plain[0] - alone[0]).abs().max() > 0.1


def test_records_of_all_layers_lose_those_without_experts_and_wrong_ones_are_refused(
    folders: Callable[[str], Path],
) -> None:
    backbone = loaded(folders("DeepSeek 3 with expert groups"))
    replay = backbone.router_replay
    assert replay is not None
    own = recorded(backbone, ROWS)[0]
    every = np.concatenate([np.zeros_like(own), own], 1)  # the first layer is dense
    assert np.array_equal(replay.select_layers(every), own)
    for wrong in (np.repeat(own, 3, 1), own + 8, np.full_like(own, 8)):
        with pytest.raises(UserError, match="reports experts that the model does not have"):
            replay.select_layers(wrong)
    with pytest.raises(UserError, match=r"reports 1 experts per token, and the model selects 2"):
        replay.select_layers(own[:, :, :1])
    with pytest.raises(UserError, match=r"reports 4 experts per token, and the model selects 2"):
        replay.select_layers(np.repeat(own, 2, 2))


def test_what_cannot_be_replayed_is_refused_by_name(random_model: Path) -> None:
    with pytest.raises(UserError, match="router_replay is for mixtures of experts, and this model has none"):
        load_backbone(ModelSettings(path=str(random_model), router_replay=True), CPU, torch.float32)
    backbone = build_small_backbone(FAMILY["Llama 4"])
    with pytest.raises(UserError, match="router_replay needs the packed forward, and Llama4ForCausalLM"):
        backbone.enable_router_replay("models: 'llama'")


def test_a_router_without_topk_is_refused_before_any_sample() -> None:
    register_attention()
    config = PhimoeConfig(
        vocab_size=96, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    backbone = Backbone(AutoModelForCausalLM.from_config(config, attn_implementation="marft").eval(), 64)
    with pytest.raises(UserError, match=r"'phi': leave router_replay out: .* without torch\.topk"):
        backbone.enable_router_replay("'phi'")
