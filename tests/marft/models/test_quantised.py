"""Checkpoints of fewer bits are read whole, to the number that their bits stand for, or refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from marft.config.models import ModelSettings
from marft.models.loader import convert_dtype, load_backbone
from tests.families import FAMILY, random_model
from tests.marft.models.test_families import CPU
from tests.marft.models.test_multimodal import saved

FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
HALF = pytest.param(torch.bfloat16, id="bfloat16")
BOTH = pytest.mark.parametrize("dtype", [pytest.param(torch.float32, id="float32"), HALF])


def fp8(weight: Tensor, block: tuple[int, int] | None) -> tuple[dict[str, Tensor], Tensor]:
    """What DeepSeek, Qwen and Mistral save of a matrix: its blocks over their scales (one block where there is no size);
    and what that stands for."""
    rows, columns = weight.shape
    high, wide = block or (rows, columns)
    blocks = weight.view(rows // high, high, columns // wide, wide)
    scales = blocks.abs().amax((1, 3), keepdim=True) / 448
    bits = (blocks / scales).to(torch.float8_e4m3fn)
    saved = {"": bits.view(rows, columns), "_scale_inv": scales[:, 0, :, 0].clone() if block else scales.reshape(())}
    return saved, (bits.float() * scales).view(rows, columns)


def mxfp4(weight_EIO: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """What OpenAI saves of experts: 32 numbers of an output's weights share an exponent; and what that stands for."""
    experts, inputs, outputs = weight_EIO.shape
    groups = weight_EIO.transpose(1, 2).reshape(experts, outputs, inputs // 32, 32)
    exponents = (groups.abs().amax(-1) / 6).log2().ceil()
    scale = (2**exponents)[..., None]
    bits = ((groups / scale)[..., None] - FP4).abs().argmin(-1).to(torch.uint8)
    saved = {"_blocks": bits[..., ::2] | (bits[..., 1::2] << 4), "_scales": (exponents + 127).to(torch.uint8)}
    return saved, (FP4[bits.long()] * scale).reshape(experts, outputs, inputs).transpose(1, 2)


def quantise(folder: Path, names: tuple[str, ...], how: Any, config: dict[str, Any]) -> dict[str, Tensor]:
    """Quantise the weights whose names end in ``names`` → what all stand for."""
    weights = load_file(folder / "model.safetensors")
    written: dict[str, Tensor] = {}
    for name, weight in weights.items():
        parts, weights[name] = how(weight) if name.endswith(names) else ({"": weight}, weight)
        written |= {name + suffix: part.contiguous() for suffix, part in parts.items()}
    save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
    say(folder, config)
    return weights


def say(folder: Path, config: dict[str, Any]) -> None:
    table = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**table, "quantization_config": config}))


def check(folder: Path, weights: dict[str, Tensor], dtype: torch.dtype) -> None:
    """What is loaded, and saved again, is what the bits stand for, in one type."""
    backbone = load_backbone(ModelSettings(path=str(folder)), CPU, dtype)
    found = backbone.base_weights()
    assert {weight.dtype for weight in found.values()} == {dtype}
    backbone.model.save_pretrained(folder / "again")
    again = load_file(folder / "again" / "model.safetensors")
    assert "quantization_config" not in json.loads((folder / "again" / "config.json").read_text())
    for name, weight in weights.items():
        assert torch.equal(again[name], weight.to(dtype)), name
        if name in found:
            assert torch.equal(found[name], weight.to(dtype)), name


@BOTH
@pytest.mark.parametrize("block", [(16, 16), None], ids=["blocks", "one scale"])
def test_fp8_is_read_whole(block: tuple[int, int] | None, dtype: torch.dtype, tmp_path: Path) -> None:
    random_model(FAMILY["Qwen 3"].small_config(), tmp_path)
    config = {"quant_method": "fp8", "activation_scheme": "dynamic" if block else "static", "weight_block_size": block}
    weights = quantise(tmp_path, ("proj.weight",), lambda weight: fp8(weight, block), config)
    check(tmp_path, weights, dtype)


@pytest.mark.slow
@BOTH
def test_experts_in_fp8_are_read_whole(dtype: torch.dtype, tmp_path: Path) -> None:
    random_model(FAMILY["Qwen 3 with experts"].small_config(), tmp_path)
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": (8, 8)}
    check(tmp_path, quantise(tmp_path, ("proj.weight",), lambda weight: fp8(weight, (8, 8)), config), dtype)


@pytest.mark.slow
@BOTH
def test_experts_in_mxfp4_are_read_whole(dtype: torch.dtype, tmp_path: Path) -> None:
    """As gpt-oss comes: all else is in half precision."""
    family = FAMILY["gpt-oss"]
    wider = replace(family, settings={**family.settings, "hidden_size": 64, "intermediate_size": 32})
    random_model(wider.small_config(), tmp_path)
    weights = quantise(tmp_path, ("experts.gate_up_proj", "experts.down_proj"), mxfp4, {"quant_method": "mxfp4"})
    check(tmp_path, weights, dtype)


@pytest.mark.slow
def test_the_language_model_of_a_quantised_checkpoint_that_also_sees_is_read_whole(tmp_path: Path) -> None:
    saved("ministral 3", tmp_path)
    config = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None,
              "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"]}  # fmt: skip
    names = tuple(f"layers.{layer}.mlp.{name}_proj.weight" for layer in (0, 1) for name in ("up", "gate", "down"))
    weights = quantise(tmp_path, names, lambda weight: fp8(weight, None), config)
    text = {
        name.removeprefix("language_model."): weight
        for name, weight in weights.items()
        if name.startswith("language_model.")
    }
    assert len(text) > 20
    check(tmp_path, text, torch.float32)


def test_what_a_model_keeps_in_float32_stays_so_and_all_else_is_of_the_type_asked_for() -> None:
    class Kept(torch.nn.Module):
        _keep_in_fp32_modules = None
        _keep_in_fp32_modules_strict = ("decay",)

        def __init__(self) -> None:
            super().__init__()
            self.decay, self.proj = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    model: Any = Kept()
    convert_dtype(model, torch.bfloat16)
    assert {name: weight.dtype for name, weight in model.named_parameters() if name.endswith("weight")} == {
        "decay.weight": torch.float32,
        "proj.weight": torch.bfloat16,
    }


def test_a_way_that_cannot_be_read_is_refused_with_the_models_name(tmp_path: Path) -> None:
    random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
    say(tmp_path, {"quant_method": "fp8", "weight_block_size": [0, 128, 3]})
    with pytest.raises(
        ValueError, match=r"^models: '.*': its quantization_config cannot be read \(.*take the checkpoint"
    ):
        load_backbone(ModelSettings(path=str(tmp_path)), CPU, torch.float32)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors"),
        ({}, "in an unknown way"),
    ],
)
def test_other_ways_are_refused_by_name_with_what_to_do(config: dict[str, Any], name: str, tmp_path: Path) -> None:
    random_model(FAMILY["Qwen 2"].small_config(), tmp_path)
    say(tmp_path, config)
    with pytest.raises(ValueError, match=rf"is quantised \({name}\), which is not read here: take the checkpoint that"):
        load_backbone(ModelSettings(path=str(tmp_path)), CPU, torch.float32)
