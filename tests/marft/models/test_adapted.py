"""Products of frozen weights and adapters, and their gradients, against the plain way in float64."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from marft.inference.sampling import sample_tokens
from marft.models import linear_layers as module
from marft.models.attention import _decode_attention
from marft.models.backbone import Backbone
from marft.models.cpu_products import PackedWeights
from marft.models.linear_layers import (
    FrozenLinear,
    PolicySpan,
    apply_gated_mlp,
    apply_linears,
    feed_forward,
    project,
)
from marft.models.log_probs import OutputHead, next_logits, scaled_logits
from marft.models.lora import Adapter

WIDTH, INNER = 6, 10


def frozen(inputs: int, outputs: int, bias: bool) -> FrozenLinear:
    return FrozenLinear(torch.randn(outputs, inputs).double(), torch.randn(outputs).double() if bias else None)


def low(layer: FrozenLinear, rank: int) -> Adapter:
    outputs, inputs = layer.weight.shape
    adapter = Adapter(inputs, outputs, rank, 0.5 * rank**2, torch.Generator(), torch.device("cpu"))
    adapter.a = nn.Parameter(torch.randn(rank, inputs).double())
    adapter.b = nn.Parameter(torch.randn(outputs, rank).double())
    return adapter


def plain(x: Tensor, layer: FrozenLinear, stretches: list[PolicySpan], number: int) -> Tensor:
    out = linear(x, layer.weight, layer.bias)
    parts = []
    for one in stretches:
        part, adapter = out[one.rows], one.adapters[number]
        if adapter:
            part = part + adapter.scale * (x[one.rows] @ adapter.a.t() @ adapter.b.t())
        parts.append(part)
    return torch.cat(parts)


def plain_gated(x: Tensor, layers: list[FrozenLinear], stretches: list[PolicySpan]) -> Tensor:
    hidden = silu(plain(x, layers[0], stretches, 0)) * plain(x, layers[1], stretches, 1)
    return plain(hidden, layers[2], stretches, 2)


@st.composite
def stretched(draw: st.DrawFn) -> tuple[list[int], list[list[int]], bool]:
    """Lengths of stretches, the rank of each layer's adapter in them (0: none), and whether layers have a bias."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    ranks = [draw(st.lists(st.integers(0, 3), min_size=3, max_size=3)) for _ in lengths]
    return lengths, ranks, draw(st.booleans())


def made(
    case: tuple[list[int], list[list[int]], bool], shapes: list[tuple[int, int]]
) -> tuple[list[FrozenLinear], list[PolicySpan]]:
    torch.manual_seed(0)
    lengths, ranks, bias = case
    layers = [frozen(*shape, bias) for shape in shapes]
    stretches, start = [], 0
    for length, mine in zip(lengths, ranks, strict=True):
        lows = tuple(low(layer, rank) if rank else None for layer, rank in zip(layers, mine, strict=True))
        stretches.append(PolicySpan(start, start + length, lows))
        start += length
    return layers, stretches


def gradients(out: Tensor, x: Tensor, stretches: list[PolicySpan]) -> list[Tensor]:
    parameters = [part for one in stretches for low in one.adapters if low for part in (low.a, low.b)]
    upstream = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return list(torch.autograd.grad((out * upstream).sum(), [x, *parameters]))


@settings(max_examples=40)
@given(stretched(), st.integers(1, 6))
def test_layers_taken_together_and_a_gated_pair_equal_autograd(
    case: tuple[list[int], list[list[int]], bool], block: int
) -> None:
    with patch.object(module, "MAX_BLOCK_ROWS", block):
        x = torch.randn(sum(case[0]), WIDTH).double().requires_grad_()
        layers, stretches = made(case, [(WIDTH, 4), (WIDTH, 7), (WIDTH, 1)])
        mine = torch.cat(apply_linears(x, layers, stretches), 1)
        other = torch.cat([plain(x, layer, stretches, number) for number, layer in enumerate(layers)], 1)
        torch.testing.assert_close(mine, other)
        torch.testing.assert_close(gradients(mine, x, stretches), gradients(other, x, stretches))
        layers, stretches = made(case, [(WIDTH, INNER), (WIDTH, INNER), (INNER, WIDTH)])
        mine, other = apply_gated_mlp(x, layers, stretches), plain_gated(x, layers, stretches)
        torch.testing.assert_close(mine, other)
        torch.testing.assert_close(gradients(mine, x, stretches), gradients(other, x, stretches))


def test_rows_that_need_no_gradient_get_none_and_adapters_do() -> None:
    layers, stretches = made(([5], [[2, 0, 1]], False), [(WIDTH, INNER), (WIDTH, INNER), (INNER, WIDTH)])
    x = torch.randn(5, WIDTH).double()
    apply_gated_mlp(x, layers, stretches).sum().backward()
    first, last = stretches[0].adapters[0], stretches[0].adapters[2]
    assert first is not None
    assert last is not None
    assert x.grad is None
    assert all(part.grad is not None and part.grad.any() for part in (first.a, first.b, last.a, last.b))


def test_weights_that_move_between_forward_and_backward_are_noticed() -> None:
    layers, stretches = made(([5], [[2, 2, 2]], False), [(WIDTH, INNER), (WIDTH, INNER), (INNER, WIDTH)])
    out = apply_gated_mlp(torch.randn(5, WIDTH).double(), layers, stretches)
    first = stretches[0].adapters[0]
    assert first is not None
    with torch.no_grad():
        first.a.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("policies", [["one"] * 5, ["one", "two", None, "one", "two"], [None] * 5])
def test_a_decoding_step_in_columns_equals_one_in_rows(backbone: Backbone, policies: list[str | None]) -> None:
    torch.manual_seed(0)
    for name in ("one", "two"):
        backbone.add_adapter(name, 3, 6.0, ("q_proj", "k_proj", "gate_proj", "down_proj"), seed=0)
        for adapter in backbone.adapters(name).values():
            nn.init.normal_(adapter.b, std=0.3)
    layer, routing = backbone.decoder.layers[0], backbone.routing
    attention = layer.self_attn
    layers = (attention.q_proj, attention.k_proj, attention.v_proj)
    x = torch.randn(5, 64)
    with torch.no_grad():
        with routing.by_row(policies):
            together, fed = project(x, layers, routing), feed_forward(x, layer.mlp, routing)
        for row, policy in enumerate(policies):
            with routing.by_span([(policy, 0, 1)], 1):
                alone, fed_alone = (
                    project(x[row : row + 1], layers, routing),
                    feed_forward(x[row : row + 1], layer.mlp, routing),
                )
            for mine, other in zip(together, alone, strict=True):
                torch.testing.assert_close(mine[row : row + 1], other)
            torch.testing.assert_close(fed[row : row + 1], fed_alone)


def test_rows_of_several_policies_have_their_adapters_where_gradients_are_wanted_too(backbone: Backbone) -> None:
    backbone.add_adapter("one", 3, 6.0, ("q_proj", "down_proj"), seed=0)
    for adapter in backbone.adapters("one").values():
        nn.init.normal_(adapter.b, std=0.3)
    layer, routing = backbone.decoder.layers[0], backbone.routing
    x = torch.randn(2, 64, requires_grad=True)
    with routing.by_row(["one", None]):
        (q,), fed = project(x, (layer.self_attn.q_proj,), routing), feed_forward(x, layer.mlp, routing)
    with routing.by_span([("one", 0, 1), (None, 1, 2)], 2):
        (expected,), expected_fed = project(x, (layer.self_attn.q_proj,), routing), feed_forward(x, layer.mlp, routing)
    torch.testing.assert_close(q, expected)
    torch.testing.assert_close(fed, expected_fed)


def test_blocks_cover_a_span_evenly_within_their_limit() -> None:
    with patch.object(module, "MAX_BLOCK_ROWS", 4):
        for rows in range(1, 20):
            blocks = list(PolicySpan(3, 3 + rows, ()).iter_blocks())
            assert [row for block in blocks for row in range(block.start, block.stop)] == list(range(3, 3 + rows))
            sizes = [block.stop - block.start for block in blocks]
            assert max(sizes) <= 4
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("learns", [True, False])
def test_intermediate_values_are_kept_for_gradients_alone(learns: bool) -> None:
    layers, stretches = made(([5], [[2, 2, 2]], False), [(WIDTH, INNER), (WIDTH, INNER), (INNER, WIDTH)])
    saved: list[tuple[int, ...]] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tuple(tensor.shape))
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor), torch.set_grad_enabled(learns):
        apply_gated_mlp(torch.randn(5, WIDTH).double(), layers, stretches)
    assert saved.count((5, INNER)) == 2 * learns


def test_next_logits_and_what_is_drawn_from_them_are_those_of_rows() -> None:
    torch.manual_seed(0)
    for vocabulary in (128, 131):
        hidden, weight = torch.randn(7, 16), torch.randn(vocabulary, 16)
        for bias in (None, torch.randn(vocabulary)):
            for temperatures in (None, torch.linspace(0.5, 1.5, 7)):
                columns = next_logits(hidden, OutputHead(weight, bias), temperatures, PackedWeights())
                rows = scaled_logits(hidden, OutputHead(weight, bias), temperatures)
                torch.testing.assert_close(columns, rows)
                uniforms = torch.linspace(0.01, 0.99, 7)
                ids, log_probs = sample_tokens(columns.clone(), uniforms, None, None)
                expected, their_log_probs = sample_tokens(rows.contiguous(), uniforms, None, None)
                assert torch.equal(ids, expected)
                torch.testing.assert_close(log_probs, their_log_probs)


def test_attention_of_new_tokens_equals_torchs_own() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(4, 2, 3, 8), torch.randn(4, 2, 9, 8), torch.randn(4, 2, 9, 8)
    mask = torch.zeros(4, 9).masked_fill_(torch.arange(9) > torch.tensor([[3], [8], [5], [0]]), -torch.inf)[
        :, None, None
    ]
    for one in (None, mask):
        expected = scaled_dot_product_attention(q, k, v, attn_mask=one, scale=0.3)
        torch.testing.assert_close(_decode_attention(q, k, v, one, 0.3), expected)
