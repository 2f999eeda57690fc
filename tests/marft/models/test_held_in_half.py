"""A bfloat16 base on a processor that multiplies float32 numbers faster: held in half, computed with in float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from marft.config.interfaces.schedule import Progress
from marft.models import half_precision
from marft.models.backbone import Backbone
from marft.models.half_precision import store_in_half
from marft.models.linear_layers import project
from marft.models.policy_registry import PolicyRegistry, compute_digest
from marft.trainer.learner import Learner
from marft.trainer.scoring import score_actions
from tests.families import FAMILY, random_model
from tests.learners import begun, episodes, recipe, samples_of
from tests.marft.models.test_families import decode, ours, scored

AVX2: Mapping[str, Any] = {"architecture": "x86_64", "avx2": True}
AVX512_BF16: Mapping[str, Any] = {**AVX2, "avx512_bf16": True}
AMX: Mapping[str, Any] = {**AVX512_BF16, "amx_bf16": True}
ARM: Mapping[str, Any] = {"architecture": "aarch64", "bf16": True}
FAMILIES = ("Qwen 2", "Qwen 3", "Llama")  # with biases, with norms of queries and keys, with neither


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(FAMILY[request.param].small_config(), tmp_path_factory.mktemp("half"))


def held(folder: Path, monkeypatch: pytest.MonkeyPatch, has: Mapping[str, Any]) -> Backbone:
    monkeypatch.setattr(half_precision.torch.cpu, "get_capabilities", lambda: has)
    backbone = ours(folder, torch.bfloat16)
    store_in_half(backbone)
    return backbone


def written_out(folder: Path) -> Backbone:
    """The rounded weights, all of them in float32."""
    backbone = ours(folder, torch.bfloat16)
    backbone.model.float()
    return backbone


def learned(backbone: Backbone) -> dict[str, Tensor]:
    """Gradients of an adapter on every linear layer, of the sum of some log-probs."""
    targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    backbone.add_adapter("one", 4, 8.0, targets, seed=0)
    for name, adapter in backbone.adapters("one").items():
        torch.nn.init.normal_(adapter.b, generator=torch.Generator().manual_seed(len(name)))
    log_probs = scored(backbone, "one")
    (log_probs * torch.linspace(-1, 2, len(log_probs))).sum().backward()
    found = {}
    for name, adapter in backbone.adapters("one").items():
        assert adapter.a.grad is not None
        assert adapter.b.grad is not None
        found |= {f"{name}.a": adapter.a.grad, f"{name}.b": adapter.b.grad}
    return found


@pytest.mark.parametrize("has", [AVX2, AVX512_BF16], ids=["avx2", "avx512_bf16"])
def test_it_scores_and_learns_as_its_weights_do_in_float32(
    folder: Path, monkeypatch: pytest.MonkeyPatch, has: Mapping[str, Any]
) -> None:
    backbone, wide = held(folder, monkeypatch, has), written_out(folder)
    torch.testing.assert_close(scored(backbone), scored(wide), rtol=0, atol=1e-6)
    mine, theirs = learned(backbone), learned(wide)
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], gradient, rtol=1e-5, atol=1e-6 * float(gradient.abs().max()), msg=name)


def test_it_decodes_what_it_scores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last digits where nothing is rounded, and as near as bfloat16 is where few rows are multiplied in it."""
    wide = decode(written_out(folder), [1, 7, 3]).log_softmax(-1)
    exact = decode(held(folder, monkeypatch, AVX2), [1, 7, 3]).log_softmax(-1)
    rounded = decode(held(folder, monkeypatch, AVX512_BF16), [1, 7, 3]).log_softmax(-1)
    torch.testing.assert_close(exact, wide, rtol=0, atol=1e-5)
    assert 1e-5 < float((rounded - wide).abs().mean()) < 0.02


def test_few_rows_are_rounded_for_the_weights_and_not_for_adapters(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one policy, and of several with a row of nobody's."""
    backbone = held(folder, monkeypatch, AVX512_BF16)
    for policy in ("one", "two"):
        backbone.add_adapter(policy, 4, 8.0, ("q_proj",), seed=0)
        for adapter in backbone.adapters(policy).values():
            torch.nn.init.normal_(adapter.b, generator=torch.Generator().manual_seed(len(policy)))
    layer = backbone.decoder.layers[0].self_attn.q_proj
    x = torch.randn(3, layer.base.in_features, generator=torch.Generator().manual_seed(0))
    whose: list[list[str | None]] = [["one"] * 3, ["one", "two", None]]
    with torch.inference_mode():
        for rows in whose:
            expected = (layer.base.weight @ x.bfloat16().t()).t().float()
            expected = expected if layer.base.bias is None else expected + layer.base.bias
            for row, name in enumerate(rows):
                if adapter := layer.get_adapter(name):
                    expected[row] += adapter.scale * (adapter.b @ (adapter.a @ x[row]))
            with backbone.routing.by_row(rows):
                (made,) = project(x, [layer], backbone.routing)
            torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)


def test_many_rows_decode_in_float32_everywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, wide = held(folder, monkeypatch, AVX512_BF16), written_out(folder)
    monkeypatch.setattr(half_precision, "MAX_DECODE_ROWS", 2)
    mine, theirs = (decode(one, [1, 7, 3]).log_softmax(-1) for one in (backbone, wide))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


def test_layers_take_half_the_memory_and_are_known_by_the_same_digest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, plain = held(folder, monkeypatch, AVX2), ours(folder, torch.bfloat16)
    weights = backbone.base_weights()
    halves = {name for name, tensor in weights.items() if tensor.dtype == torch.bfloat16}
    assert halves == {name for name in weights if name.endswith("_proj.weight")}
    assert compute_digest(weights) == compute_digest(plain.base_weights())
    assert not backbone.needs_fixed_size


@pytest.mark.slow
def test_a_run_is_scored_as_one_in_float32_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit whatever a token is packed with, so that prefixes are shared; and steps stay finite."""
    monkeypatch.setattr(half_precision.torch.cpu, "get_capabilities", lambda: AVX2)
    run = recipe(tmp_path, "grpo", "--algorithm.epochs", "1", dtype="bfloat16")
    learner, samples = begun(run), samples_of(episodes())
    assert learner.packing.share
    alone = replace(learner.packing, share=False).with_fixed_sizes([samples])
    assert not alone.sizes
    whole = score_actions(alone, samples)
    for sample in samples:
        (key, row), *_ = score_actions(alone, [sample]).items()
        assert np.array_equal(whole[key], row)
    metrics = Learner(run, PolicyRegistry(run)).learn(episodes(), Progress(0, 0))
    assert all(np.isfinite(value) for value in metrics.values())
    assert metrics["agents/actor/kl_to_base"] == 0.0  # of a policy that is its base still


@pytest.mark.parametrize("has", [AMX, ARM], ids=["amx", "arm"])
def test_where_halves_are_multiplied_faster_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch, has: Mapping[str, Any]
) -> None:
    backbone = held(folder, monkeypatch, has)
    assert {tensor.dtype for tensor in backbone.base_weights().values()} == {torch.bfloat16}
    assert backbone.needs_fixed_size
    assert torch.equal(scored(backbone), scored(ours(folder, torch.bfloat16)))


@pytest.mark.parametrize("name", ["Gemma 2", "gpt-oss", "Granite 4 hybrid"])
def test_bases_that_run_as_modules_stay_as_they_are(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = held(random_model(FAMILY[name].small_config(), tmp_path), monkeypatch, AVX2)
    plain = ours(tmp_path, torch.bfloat16)
    assert {n: t.dtype for n, t in backbone.base_weights().items()} == {
        n: t.dtype for n, t in plain.base_weights().items()
    }
