"""Products by oneDNN equal those of torch, in the forward, in the gradient and in decoding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from marft.models import cpu_products
from marft.models.cpu_products import PackedWeights, add_product, multiply_columns, multiply_rows, uses_onednn
from marft.models.packed_rows import PackedRows
from tests.marft.models.test_decode_pass import FAMILIES, general_forward, new_backbone, prefilled

pytestmark = pytest.mark.skipif(not cpu_products.HAS_ONEDNN, reason="PyTorch without oneDNN")
ALWAYS, NEVER = 0, 2**60  # values of MIN_WEIGHTS
SHAPES = [(1, 5, 3), (2, 64, 48), (33, 17, 130)]


@pytest.fixture(params=[ALWAYS, NEVER], ids=["onednn", "torch"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(cpu_products, "MIN_WEIGHTS", request.param)
    return int(request.param)


def close(value: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("limit")
def test_every_product_is_that_of_a_float64_reference(shape: tuple[int, int, int], is_transposed: bool) -> None:
    rows, inputs, outputs = shape
    torch.manual_seed(0)
    x, bias, total = torch.randn(rows, inputs), torch.randn(outputs), torch.randn(rows, outputs)
    weight = torch.randn(inputs, outputs).t() if is_transposed else torch.randn(outputs, inputs)
    product = x.double() @ weight.double().t()
    close(multiply_rows(x, weight), product)
    close(multiply_rows(x, weight, bias), product + bias.double())
    close(multiply_columns(weight, x.t()), product.t())
    close(multiply_columns(weight, x.t(), bias), (product + bias.double()).t())
    close(add_product(total.clone(), x, weight), product + total.double())


def test_small_weights_other_precisions_and_other_devices_are_left_to_torch() -> None:
    large = torch.empty(512, 256)
    assert uses_onednn(large)
    assert not uses_onednn(large[:511])
    assert not uses_onednn(large.double())
    assert not uses_onednn(large.bfloat16())
    assert not uses_onednn(large.to("meta"))


def test_float64_products_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_products, "MIN_WEIGHTS", ALWAYS)
    x, weight = torch.randn(3, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    assert torch.equal(multiply_rows(x, weight), linear(x, weight))


class TestPacking:
    def test_weights_are_packed_together_once(self) -> None:
        packed, weights, x = PackedWeights(), [torch.randn(512, 256), torch.randn(3, 256)], torch.randn(7, 256)
        first = packed.pack(weights)
        assert first is not None
        assert packed.pack(weights) is first
        close(multiply_columns(first, x.t()).t(), x.double() @ torch.cat(weights).double().t())

    def test_a_weight_that_has_changed_is_packed_again(self) -> None:
        packed, weight, x = PackedWeights(), torch.randn(512, 256), torch.randn(7, 256)
        packed.pack([weight])
        weight.mul_(2.0)
        again = packed.pack([weight])
        assert again is not None
        close(multiply_columns(again, x.t()).t(), x.double() @ weight.double().t())

    def test_a_weight_in_the_memory_of_a_deleted_one_has_its_own_copy(self) -> None:
        packed, x = PackedWeights(), torch.randn(7, 256)
        for _ in range(5):  # CPython reuses the id of an object that is deleted
            weight = torch.randn(512, 256)
            copy = packed.pack([weight])
            assert copy is not None
            close(multiply_columns(copy, x.t()).t(), x.double() @ weight.double().t())
            del weight

    def test_trained_and_small_weights_are_not_packed(self) -> None:
        packed = PackedWeights()
        assert packed.pack([torch.randn(512, 256, requires_grad=True)]) is None
        assert packed.pack([torch.randn(512, 256), torch.randn(512, 256, requires_grad=True)]) is None
        assert packed.pack([torch.randn(16, 256)]) is None

    def test_copies_stay_within_their_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second = torch.randn(512, 256), torch.randn(512, 256)
        monkeypatch.setattr(cpu_products, "MAX_PACKED_BYTES", 2 * first.nbytes - 1)
        packed = PackedWeights()
        assert packed.pack([first]) is not None
        first.mul_(2.0)
        assert packed.pack([first]) is not None  # anew, in its own place
        assert packed.nbytes == first.nbytes
        assert packed.pack([second]) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_and_gradients_do_not_depend_on_the_library(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [np.arange(3, 3 + length, dtype=np.int32) for length in (4, 9, 6)]
    results = []
    for limit in (ALWAYS, NEVER):
        monkeypatch.setattr(cpu_products, "MIN_WEIGHTS", limit)
        backbone = new_backbone(family)
        hidden = backbone.hidden_states(PackedRows.from_rows(rows, ["one", "two", None], backbone.device))
        hidden.square().sum().backward()  # type: ignore[no-untyped-call]
        adapters = [adapter for policy in ("one", "two") for adapter in backbone.adapters(policy).values()]
        results.append([hidden.detach(), *(part.grad for each in adapters for part in (each.a, each.b))])
    for value, expected in zip(*results, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("policies", [["one"] * 2, ["one", "two", None, "one"]], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_with_packed_weights_equals_the_forward_with_stored_ones(
    family: str, policies: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = new_backbone(family)
    with torch.inference_mode():
        cache, lengths = prefilled(backbone, policies)
        ids = torch.randint(3, 90, (len(policies),))
        expected = general_forward(backbone, cache, ids, lengths, policies)
        expected_logits = backbone.compute_logits(expected, None)
        monkeypatch.setattr(cpu_products, "MIN_WEIGHTS", ALWAYS)
        hidden = cache.step(ids, lengths, policies)
        logits = backbone.compute_logits(hidden, None)
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-4)
    assert backbone.packed_weights.nbytes == sum(
        weight.nbytes
        for name, weight in backbone.model.named_parameters()
        if ("proj" in name and name.endswith("weight")) or "lm_head" in name
    )
