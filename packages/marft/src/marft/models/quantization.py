"""Quantized checkpoints: dequantized if transformers supports it, else rejected with the method's name.

Training and adapters need unquantized weights. Kernels for packed bits have no gradient here, and not every device
supports them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils.quantization_config import FineGrainedFP8Config, Mxfp4Config

HINT = (
    "take the checkpoint that it was made from (the card of the model names it), or write it out where it can be read: "
    "load it with transformers, model.dequantize(), and save_pretrained(folder)"
)


def dequantization_config(config: PreTrainedConfig, label: str) -> FineGrainedFP8Config | Mxfp4Config | None:
    """Return the dequantization settings for a checkpoint; None if not quantized.

    Args:
        label: the model's name in errors.

    Raises:
        ValueError: the quantization method is unsupported, or its configuration is invalid.
    """
    quantization_config: Any = getattr(config, "quantization_config", None)
    if quantization_config is None:
        return None
    table: Mapping[str, Any] = (
        quantization_config if isinstance(quantization_config, Mapping) else quantization_config.to_dict()
    )
    method = str(getattr(table.get("quant_method"), "value", table.get("quant_method")) or "")
    if not method and (table.get("load_in_4bit") or table.get("load_in_8bit")):
        method = "bitsandbytes"
    skip_modules = table.get("modules_to_not_convert")
    try:
        if method == "mxfp4":
            return Mxfp4Config(modules_to_not_convert=skip_modules, dequantize=True)
        if method == "fp8":
            options = {key: table[key] for key in ("activation_scheme", "weight_block_size") if key in table}
            return FineGrainedFP8Config(modules_to_not_convert=skip_modules, dequantize=True, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{label}: its quantization_config cannot be read ({error}): {HINT}") from error
    raise ValueError(f"{label} is quantised ({method or 'in an unknown way'}), which is not read here: {HINT}")


def convert_dtype(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Convert dequantized weights to the requested dtype, except weights that the model keeps in float32."""
    fp32_modules = {*(model._keep_in_fp32_modules or ()), *(model._keep_in_fp32_modules_strict or ())}
    for name, weight in model.named_parameters():
        if not any(part in name for part in fp32_modules):
            weight.data = weight.data.to(dtype)
