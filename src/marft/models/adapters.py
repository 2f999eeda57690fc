"""Adapters on disk, in peft's format: ``peft`` and vLLM read them as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from peft import LoraConfig
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from marft.config.models import LoraSettings
from marft.models.backbone import Backbone
from marft.models.lora import Adapter

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def save_adapter(adapters: Mapping[str, Adapter], lora: LoraSettings, base: str, folder: Path) -> None:
    """Write ``adapter_model.safetensors`` and ``adapter_config.json``.

    Args:
        adapters: by the full name of the layer they sit on.
        base: the path or id of the base model, which the configuration names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for layer, adapter in adapters.items():
        tensors[f"base_model.model.{layer}.lora_A.weight"] = adapter.a.detach().cpu().contiguous()
        tensors[f"base_model.model.{layer}.lora_B.weight"] = adapter.b.detach().cpu().contiguous()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        target_modules=list(lora.targets),
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
        inference_mode=True,
    ).save_pretrained(str(folder))


def read_lora_settings(folder: Path) -> LoraSettings:
    """Rank, alpha and targets of an adapter folder.

    Raises:
        ValueError: the folder holds no LoRA adapter, or one of a kind that MARFT does not compute.
    """
    try:
        config = json.loads((folder / CONFIG).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"no adapter at {folder}: {error}") from error
    unsupported = [
        key for key in ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "bias") if _used(config, key)
    ]
    if config.get("peft_type") != "LORA" or unsupported or not isinstance(config.get("target_modules"), list):
        raise ValueError(
            f"the adapter at {folder} is not plain LoRA ({', '.join(unsupported) or config.get('peft_type')})"
        )
    return LoraSettings(
        rank=config["r"], alpha=float(config["lora_alpha"]), targets=tuple(sorted(config["target_modules"]))
    )


def load_adapter(backbone: Backbone, policy: str, folder: Path) -> None:
    """Copy a saved adapter into the policy's, which has its shape.

    Raises:
        ValueError: the file is missing or damaged, or does not fit.
    """
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot read the adapter at {folder}: {error}") from error
    adapters = backbone.adapters(policy)
    expected = {f"base_model.model.{layer}.lora_{half}.weight" for layer in adapters for half in "AB"}
    if set(tensors) != expected:
        missing, extra = sorted(expected - set(tensors)), sorted(set(tensors) - expected)
        raise ValueError(
            f"the adapter at {folder} is for other layers: missing {missing[:2]}, unexpected {extra[:2]}; "
            "set lora.targets to the adapter's"
        )
    for layer, adapter in adapters.items():
        _copy(adapter.a, tensors[f"base_model.model.{layer}.lora_A.weight"], folder)
        _copy(adapter.b, tensors[f"base_model.model.{layer}.lora_B.weight"], folder)


@torch.no_grad()
def _copy(target: Tensor, source: Tensor, folder: Path) -> None:
    if target.shape != source.shape:
        raise ValueError(
            f"the adapter at {folder} has shape {tuple(source.shape)} where {tuple(target.shape)} is needed; "
            "set lora.rank to the adapter's"
        )
    target.copy_(source)


def _used(config: Mapping[str, object], key: str) -> bool:
    return config.get(key) not in (None, False, "none", {})
