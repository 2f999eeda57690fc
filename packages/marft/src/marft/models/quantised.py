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

REMEDY = (
    "take the checkpoint that it was made from (the card of the model names it), or write it out where it can be read: "
    "load it with transformers, model.dequantize(), and save_pretrained(folder)"
)


def written_out(config: PreTrainedConfig, what: str) -> FineGrainedFP8Config | Mxfp4Config | None:
    """Return the dequantization settings for a checkpoint; None if not quantized.

    Args:
        what: the model's name in errors.

    Raises:
        ValueError: the quantization method is unsupported, or its configuration is invalid.
    """
    said: Any = getattr(config, "quantization_config", None)
    if said is None:
        return None
    table: Mapping[str, Any] = said if isinstance(said, Mapping) else said.to_dict()
    method = str(getattr(table.get("quant_method"), "value", table.get("quant_method")) or "")
    if not method and (table.get("load_in_4bit") or table.get("load_in_8bit")):
        method = "bitsandbytes"
    kept = table.get("modules_to_not_convert")
    try:
        if method == "mxfp4":
            return Mxfp4Config(modules_to_not_convert=kept, dequantize=True)
        if method == "fp8":
            known = {key: table[key] for key in ("activation_scheme", "weight_block_size") if key in table}
            return FineGrainedFP8Config(modules_to_not_convert=kept, dequantize=True, **known)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what}: its quantization_config cannot be read ({error}): {REMEDY}") from error
    raise ValueError(f"{what} is quantised ({method or 'in an unknown way'}), which is not read here: {REMEDY}")


def to_one_dtype(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Convert dequantized weights to the requested dtype, except weights that the model keeps in float32."""
    kept = {*(model._keep_in_fp32_modules or ()), *(model._keep_in_fp32_modules_strict or ())}
    for name, weight in model.named_parameters():
        if not any(part in name for part in kept):
            weight.data = weight.data.to(dtype)
