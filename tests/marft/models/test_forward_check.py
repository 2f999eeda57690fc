"""Rounding is told from another architecture when a model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from tools import model_families
from tools.model_families import SMALL_CONFIG
from torch import nn
from transformers import AutoModelForCausalLM

from marft.config.models import ModelSettings
from marft.models import attention, forward_check, fused_decoder, log_probs
from marft.models.attention import AttentionSpec
from marft.models.backbone import Backbone
from marft.models.forward_check import VOCAB_SIZE, WINDOW_SIZE, build_small_config, build_small_copy
from marft.models.loader import load_backbone
from marft.models.log_probs import IDENTITY
from tests.families import FAMILY, random_model

CPU = torch.device("cpu")


def backbone_of(config: transformers.PreTrainedConfig, dtype: torch.dtype = torch.float32) -> Backbone:
    """Of a random model whose weights are as a fresh model's: nothing bites in it."""
    attention.register_attention()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention.IMPLEMENTATION)
    return Backbone(model.eval().requires_grad_(False), 256)


def settled(config: transformers.PreTrainedConfig, dtype: torch.dtype = torch.float32) -> Backbone:
    backbone = backbone_of(config, dtype)
    forward_check.select_forward(backbone, "it")
    return backbone


def forgetting(**changes: object) -> Callable[[pytest.MonkeyPatch], None]:
    """Attention that leaves something of its weighing out."""

    def forget(patch: pytest.MonkeyPatch) -> None:
        for module in (attention, fused_decoder):
            patch.setattr(module, "AttentionSpec", lambda *given: replace(AttentionSpec(*given), **changes))  # type: ignore[arg-type]

    return forget


def forgetting_logits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_probs.LogitTransform, "__call__", lambda _, products: products)


# Real values: Gemma 2 caps scores at 50 and logits at 30, and windows are thousands of tokens long.
CAPPED = {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "max_position_embeddings": 8192}
LEFT_OUT: dict[str, tuple[str, dict[str, object], Callable[[pytest.MonkeyPatch], None]]] = {
    "cap": ("Gemma2Config", {**CAPPED, "final_logit_softcapping": None}, forgetting(softcap=None)),
    "logit cap": ("Gemma2Config", {**CAPPED, "attn_logit_softcapping": None}, forgetting_logits),
    "sinks": ("GptOssConfig", {"head_dim": 64, "num_local_experts": 32}, forgetting(sinks=None)),
    "window": ("MistralConfig", {"sliding_window": 4096, "max_position_embeddings": 8192}, forgetting(window=None)),
    "local layers": ("Gemma3TextConfig", {"head_dim": 256, "num_hidden_layers": 8}, forgetting(window=None)),
    "logit scale": ("GraniteConfig", {"logits_scaling": 8.0}, forgetting_logits),
    "scale of scores": ("GraniteConfig", {"attention_multiplier": 0.0078}, forgetting(scale=8**-0.5)),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_a_forward_that_leaves_something_out_is_not_used(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where neither short rows nor the weights at hand would show it."""
    kind, changes, forget = LEFT_OUT[what]
    config = getattr(transformers, kind)(**{**SMALL_CONFIG, **changes})
    monkeypatch.setattr(forward_check, "_checked", {})
    assert not settled(config).native
    forget(monkeypatch)
    monkeypatch.setattr(forward_check, "_checked", {})
    if forget is forgetting_logits:
        with pytest.raises(ValueError, match=r"the logits or states of .* are made in a way that is not known here"):
            settled(config)
    else:
        assert settled(config).native


def test_layers_without_rotation_are_not_run_by_the_forward_that_rotates_all() -> None:
    """The first of them is the fourth."""
    backbone = backbone_of(FAMILY["SmolLM 3"].small_config())
    assert backbone.fused
    forward_check.select_forward(backbone, "it")
    assert not backbone.fused
    assert not backbone.native


def test_scores_that_are_scaled_far_into_a_row_are_not_left_to_the_forward_that_does_not() -> None:
    """Ministral 3 scales queries from the 16,384th token on: no row that is tried is as long, the copy's are."""
    table = {**model_families.SCALED_ROPE, "original_max_position_embeddings": 16384}
    config = transformers.Ministral3Config(**{**SMALL_CONFIG, "head_dim": 16, "rope_parameters": table})
    assert backbone_of(config).fused
    assert model_families.forward_name(settled(config)) == "packed"


@pytest.mark.parametrize("name", ["Doge", "DeepSeek 3.2"])
def test_layers_that_choose_what_a_token_sees_are_not_packed(name: str) -> None:
    backbone = backbone_of(FAMILY[name].small_config())
    forward_check.select_forward(backbone, "it")
    assert backbone.native


def test_a_mask_of_a_layers_own_is_never_left_out() -> None:
    rows = torch.zeros(1, 2, 5, 4)
    with pytest.raises(ValueError, match="Linear chooses itself what a token sees; its rows cannot be packed"):
        attention.attention_forward(
            nn.Linear(1, 1), rows, rows, rows, rows[..., 0], plan=attention.PackedPlan([5], CPU)
        )


def test_layers_of_unknown_kinds_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their names say of their masks."""
    config = FAMILY["Qwen 3"].small_config()
    config.layer_types = ["full_attention", "indexed_attention"]
    backbone = backbone_of(config)
    assert not forward_check._supports_packing(backbone.model)
    backbone.model.config.layer_types = ["full_attention", "sliding_attention"]
    assert forward_check._supports_packing(backbone.model)


def test_a_half_precision_model_is_not_taken_for_another_architecture(tmp_path: Path) -> None:
    """Large weights, where rounding moves log-probs by tenths of a nat: a real model once was refused for it."""
    folder = random_model(transformers.LlamaConfig(**{**SMALL_CONFIG, "num_hidden_layers": 12}), tmp_path)
    backbone = load_backbone(ModelSettings(path=str(folder)), CPU, torch.bfloat16)
    assert backbone.fused
    backbone.fp32_residual = False
    own = forward_check._native_logits(backbone.model, forward_check._model_rows(backbone), "eager")
    mine = forward_check._packed_logits(backbone, forward_check._model_rows(backbone))
    assert (mine.log_softmax(-1) - own.float().log_softmax(-1)).abs().max() > 0.2


def test_a_model_that_differs_on_its_real_weights_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = backbone_of(FAMILY["Qwen 2"].small_config(), torch.bfloat16)
    original = forward_check._packed_logits

    def elsewhere(of: Backbone, rows: object) -> torch.Tensor:
        logits = original(of, rows)  # type: ignore[arg-type]
        return logits.roll(1, -1) if of is backbone and not of.native else logits

    monkeypatch.setattr(forward_check, "_packed_logits", elsewhere)
    forward_check.select_forward(backbone, "it")
    assert backbone.native


def test_what_recomputes_is_checked_by_the_forward_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    original = forward_check._packed_logits

    def seen(of: Backbone, rows: object) -> torch.Tensor:
        checked.append((of.fused, of.native))
        return original(of, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(forward_check, "_packed_logits", seen)
    monkeypatch.setattr(forward_check, "_checked", {})
    for recomputes in (False, True):
        settings = ModelSettings(path="tiny", gradient_checkpointing=recomputes)
        backbone = load_backbone(settings, torch.device("cpu"), torch.float32)
        assert {(backbone.fused, backbone.native)} == set(checked) == {(not recomputes, False)}
        checked.clear()


@pytest.mark.parametrize(
    ("made", "where"), [("_packed_logits", "in a batch"), ("_decoded_logits", "decoded")], ids=["batch", "decoded"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_model_that_is_another_in_a_batch_or_decoded_than_alone_is_refused(
    made: str, where: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model that runs its own forward: whatever leaks from row to row, or is lost in a cache."""
    backbone = backbone_of(FAMILY["Doge"].small_config(), dtype)
    original = getattr(forward_check, made)

    def leaking(of: Backbone, rows: object) -> torch.Tensor:
        logits = original(of, rows)
        return logits + torch.randn_like(logits) if of is backbone else logits

    monkeypatch.setattr(forward_check, made, leaking)
    with pytest.raises(ValueError, match=f"log-probs of DogeForCausalLM are others {where} than transformers' own"):
        forward_check.select_forward(backbone, "it")


def test_a_small_copy_has_a_layer_of_each_kind_and_short_windows() -> None:
    config = transformers.Gemma3TextConfig(
        **{**SMALL_CONFIG, "head_dim": 256, "num_hidden_layers": 26, "vocab_size": 300}
    )
    small = build_small_config(backbone_of(config).model, backbone_of(config).decoder)
    assert small.num_hidden_layers == 6
    assert set(small.layer_types) == {"sliding_attention", "full_attention"}
    assert small.sliding_window == WINDOW_SIZE
    assert config.sliding_window == 4096  # the model itself is as it was


SETTINGS = (
    ("Qwen 2", "rope_parameters.rope_theta"), ("Llama", "rope_parameters.rope_theta"),
    ("Llama", "rope_parameters.factor"), ("Llama", "rope_parameters.high_freq_factor"),
    ("Mistral", "sliding_window"), ("Gemma 2", "sliding_window"), ("Gemma 2", "query_pre_attn_scalar"),
    ("Gemma 2", "attn_logit_softcapping"), ("Gemma 2", "final_logit_softcapping"),
    ("Granite 3", "attention_multiplier"), ("Granite 3", "residual_multiplier"), ("Granite 3", "logits_scaling"),
    ("Granite 3", "embedding_multiplier"), ("Ministral 3", "rope_parameters.llama_4_scaling_beta"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "setting"), SETTINGS)
def test_a_setting_that_is_off_by_two_percent_or_by_one_shows_in_a_small_copy(name: str, setting: str) -> None:
    """What is called the same is far above rounding and below whatever is left out or taken wrongly."""
    backbone = backbone_of(FAMILY[name].small_config())
    copy = build_small_copy(backbone.model, backbone.decoder)
    assert copy is not None
    rows = forward_check._make_rows(forward_check.COPY_LENGTHS, VOCAB_SIZE)
    own = forward_check._native_logits(copy, rows, "eager")
    config = deepcopy(copy.config)
    *within, last = setting.split(".")
    table = vars(config)
    for part in within:
        table = table[part]
    table[last] = table[last] + 1 if isinstance(table[last], int) else 1.02 * table[last]
    other = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    other.load_state_dict(copy.state_dict())
    off = forward_check._log_prob_errors(forward_check._native_logits(other, rows, "eager"), own).max()
    assert off > 10 * forward_check.FLOAT32_TOLERANCE
    assert not forward_check._matches_native(other, own, fused=False, native=False)
    packed = Backbone(copy, 64)
    packed.fused = False
    copy.set_attn_implementation(attention.IMPLEMENTATION)
    for mine, wanted in (
        (forward_check._packed_logits(packed, rows), own),
        (forward_check._decoded_logits(packed, rows), own[torch.tensor(forward_check.COPY_LENGTHS).cumsum(0) - 1]),
    ):
        assert forward_check._log_prob_errors(mine, wanted).max() < forward_check.FLOAT32_TOLERANCE / 50


def test_making_a_small_copy_draws_nothing_from_the_common_generator() -> None:
    backbone = backbone_of(FAMILY["Qwen 2"].small_config())
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    assert build_small_copy(backbone.model, backbone.decoder) is not None
    assert torch.equal(torch.rand(3), wanted)


def test_a_small_copy_is_the_same_whatever_was_drawn_before() -> None:
    """Also where a fresh model draws something that is no matrix: the sinks of gpt-oss."""
    backbone = backbone_of(FAMILY["gpt-oss"].small_config())
    copies = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        copies.append(build_small_copy(backbone.model, backbone.decoder))
    one, other = (dict(copy.state_dict()) for copy in copies if copy is not None)
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())


@pytest.mark.parametrize("name", ["gpt-oss", "DeepSeek 3", "Doge", "Granite 4 hybrid"])
def test_nothing_of_a_small_copy_is_as_a_fresh_model_has_it(name: str) -> None:
    """Sinks, biases, gates and corrections of routers begin at 0 or 1, where they would not show."""
    backbone = backbone_of(FAMILY[name].small_config())
    copy = build_small_copy(backbone.model, backbone.decoder)
    assert copy is not None
    for weight, tensor in copy.state_dict().items():
        if tensor.is_floating_point():
            assert not ((tensor == 0) | (tensor == 1)).any(), weight


def test_plain_logits_are_not_even_copied() -> None:
    logits = torch.randn(3, 4)
    assert IDENTITY(logits) is logits
