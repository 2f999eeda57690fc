"""The packed forward against the model's own, row by row, values and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen3Config

from marft.config.models import ModelSettings
from marft.models import attention
from marft.models import attention as weighing_module
from marft.models.attention import AttentionSpec, PackedPlan, padded_length
from marft.models.backbone import Backbone
from marft.models.loader import load_backbone
from marft.models.packed_rows import PackedRows


def rows(*lengths: int) -> list[np.ndarray]:
    return [(np.arange(n) * 7 + n).astype(np.int32) % 100 for n in lengths]


@pytest.mark.parametrize("lengths", [(5,), (6, 6, 6), (3, 17, 4, 16, 1, 9), (40, 2)])
def test_packed_rows_equal_the_models_own_forward(
    backbone: Backbone, random_model: Path, lengths: tuple[int, ...]
) -> None:
    own = AutoModelForCausalLM.from_pretrained(random_model, dtype=torch.float32)
    batch = rows(*lengths)
    mine = backbone.hidden_states(PackedRows.from_rows(batch, [None] * len(batch), backbone.device))
    theirs = torch.cat([own.model(torch.from_numpy(row).long()[None]).last_hidden_state[0] for row in batch])
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_gradients_do_not_depend_on_how_rows_are_packed(backbone: Backbone) -> None:
    backbone.model.requires_grad_(True)
    batch = rows(3, 17, 4, 16, 1, 9)
    gradients = []
    for packs in ([batch], [[row] for row in batch], [batch[::-1][:2], batch[:4]]):
        backbone.model.zero_grad()
        for pack in packs:
            hidden = backbone.hidden_states(PackedRows.from_rows(pack, [None] * len(pack), backbone.device))
            (hidden * torch.linspace(-1, 1, hidden.shape[1])).sum().backward()
        gradients.append({n: p.grad.clone() for n, p in backbone.model.named_parameters() if p.grad is not None})
    for other in gradients[1:]:
        for name, gradient in gradients[0].items():
            scale = gradient.abs().max() + 1e-6
            torch.testing.assert_close(other[name] / scale, gradient / scale, rtol=0, atol=1e-5)


def test_no_row_is_padded_by_more_than_a_quarter() -> None:
    for length in range(1, 3000):
        assert length <= padded_length(length) <= max(16, 1.25 * length)
    assert len({padded_length(length) for length in range(1, 2049)}) <= 32  # and few lengths are different


SMALL = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [LlamaConfig(**SMALL), Qwen3Config(**SMALL, head_dim=16), MistralConfig(**SMALL, sliding_window=4)],
    ids=lambda config: config.model_type,
)
def test_other_architectures_load_and_agree(config: LlamaConfig, tmp_path: Path) -> None:
    _save_random(config, tmp_path)
    backbone = load_backbone(
        ModelSettings(path=str(tmp_path)), torch.device("cpu"), torch.float32
    )  # checks the forward
    assert backbone.fused
    rows_of = PackedRows.from_rows(rows(3, 17, 9), [None] * 3, backbone.device)
    fused = backbone.hidden_states(rows_of)
    backbone.fused = False
    torch.testing.assert_close(fused, backbone.hidden_states(rows_of), rtol=1e-4, atol=1e-5)


def test_a_model_of_the_same_parts_that_computes_otherwise_runs_its_own_forward(tmp_path: Path) -> None:
    from transformers import GraniteConfig

    _save_random(GraniteConfig(**SMALL, residual_multiplier=0.5, attention_multiplier=0.25), tmp_path)
    backbone = load_backbone(ModelSettings(path=str(tmp_path)), torch.device("cpu"), torch.float32)
    assert not backbone.fused


def test_attention_with_a_cap_and_sinks_is_the_same_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long rows are taken some queries at a time, which the backward pass does again."""
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 11, 8) * 3, torch.randn(2, 2, 11, 8) * 3, torch.randn(2, 2, 11, 6)
    sinks = torch.randn(4)
    visible = torch.ones(11, 11, dtype=torch.bool).tril()[None]
    results = []
    for scores in (10**9, 3 * 2 * 4 * 11):
        monkeypatch.setattr(weighing_module, "MAX_SCORES", scores)
        leaves = [x.clone().requires_grad_() for x in (q, k, v, sinks)]
        out = weighing_module.eager_attention(*leaves[:3], visible, AttentionSpec(0.4, softcap=5.0, sinks=leaves[3]))
        out.square().sum().backward()
        results.append([out.detach(), *(leaf.grad for leaf in leaves)])
    for whole, parts in zip(*results, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)


def test_a_model_that_cannot_be_loaded_is_one_clear_message(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot load"):
        load_backbone(ModelSettings(path=str(tmp_path / "nowhere")), torch.device("cpu"), torch.float32)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot load"):
        load_backbone(ModelSettings(path=str(tmp_path)), torch.device("cpu"), torch.float32)


def test_a_context_longer_than_the_model_was_made_for_is_refused(random_model: Path) -> None:
    with pytest.raises(ValueError, match="context_length 9999 is more than the 512 tokens"):
        load_backbone(ModelSettings(path=str(random_model), context_length=9999), torch.device("cpu"), torch.float32)


def _save_random(config: LlamaConfig, folder: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)


@pytest.mark.parametrize(
    "weighing",
    [
        AttentionSpec(0.4, 700),
        AttentionSpec(0.4, 5),
        AttentionSpec(0.4, None, 1.5),
        AttentionSpec(0.4, 700, 1.5, torch.linspace(-1, 1, 4)),
    ],
    ids=["wide", "narrow", "capped", "sinks"],
)
def test_a_long_row_attends_some_queries_at_a_time_and_no_mask_is_as_large_as_its_square(
    weighing: AttentionSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes out, and the gradients, are those of one mask for the whole row."""
    largest = [0]
    plain = weighing_module.eager_attention
    attend = attention.scaled_dot_product_attention

    def watched(*arguments: Any, **options: Any) -> torch.Tensor:
        mask = options.get("attn_mask", arguments[3] if len(arguments) > 3 else None)
        largest[0] = max(largest[0], mask.numel() if mask is not None else 0)
        return (plain if "attn_mask" not in options else attend)(*arguments, **options)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    rows = [torch.randn(1300, heads, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    found = []
    monkeypatch.setattr(attention, "eager_attention", watched)
    monkeypatch.setattr(attention, "scaled_dot_product_attention", watched)
    for whole in (attention.MAX_MASK_LENGTH, 10**6):
        monkeypatch.setattr(attention, "MAX_MASK_LENGTH", whole)
        out = PackedPlan([1300], torch.device("cpu")).attend(0, *rows, weighing)
        found.append([out, *torch.autograd.grad((out * out.detach().cos()).sum(), rows)])
        if whole < 10**6:
            assert 0 < largest[0] <= 512 * 1536
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
