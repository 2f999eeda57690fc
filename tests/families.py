"""Small random models of each family, saved to be loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from tools.model_families import MODEL_FAMILIES, linear_layer_names, scale_up_weights
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerBase

from marft.config.models import ModelSettings
from marft.models.loader import load_backbone

FAMILY = {family.name: family for family in MODEL_FAMILIES}
PACKED = (
    "Qwen 2", "Qwen 3", "Qwen 3 with experts", "Llama", "Mistral", "Ministral 3", "SmolLM 3", "Gemma 2", "Gemma 3",
    "Phi 3, 4", "OLMo 2", "GLM 4", "Granite 3", "Cohere 2", "gpt-oss", "DeepSeek 3", "Qwen 3.5", "Qwen 3 Next",
    "Granite 4 hybrid", "Bamba", "LFM 2", "Mamba", "Mamba 2", "Nemotron-H", "Gemma 4", "StableLM", "GPT-2",
    "DeepSeek 3 with expert groups", "GLM 4 with experts", "ERNIE 4.5 with experts", "MiniMax M2", "Mixtral",
    "Granite 3 with experts", "Nemotron 3",
)  # fmt: skip
EXPERTS = (
    "Qwen 3 with experts", "gpt-oss", "DeepSeek 3", "DeepSeek 3 with expert groups", "GLM 4 with experts",
    "ERNIE 4.5 with experts", "MiniMax M2", "Mixtral", "Granite 3 with experts",
)  # fmt: skip
OWN = ("Doge", "DeepSeek 3.2", "Llama 4")
RECURRENT = (
    "Qwen 3.5", "Qwen 3 Next", "Granite 4 hybrid", "Bamba", "LFM 2", "Mamba", "Mamba 2", "Nemotron-H",
    "Nemotron 3",
)  # fmt: skip
FOR_EXPERTS = {"gate_proj", "up_proj", "down_proj"}  # peft takes these for the experts of a model that has any
LEFT_OUT = {
    "DeepSeek 3": FOR_EXPERTS,
    "DeepSeek 3 with expert groups": FOR_EXPERTS,
    "ERNIE 4.5 with experts": FOR_EXPERTS,
    "GLM 4 with experts": FOR_EXPERTS,
    "DeepSeek 3.2": {*FOR_EXPERTS, "wq_b", "wk", "weights_proj"},
    "Qwen 3 Next": FOR_EXPERTS,
    "Mamba": {"out_proj"},
    "Mamba 2": {"out_proj"},
    "Nemotron-H": {"out_proj"},
    "Nemotron 3": {"out_proj", *FOR_EXPERTS},
}  # refused by peft; only chooses keys
NO_CHANGES: Mapping[str, Any] = MappingProxyType({})


def random_model(config: PreTrainedConfig, folder: Path) -> Path:
    """Save a random model whose logits are far from uniform."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    scale_up_weights(model)
    model.save_pretrained(folder)
    return folder


def random_team_model(
    family: str, folder: Path, tokenizer: PreTrainedTokenizerBase, sizes: Mapping[str, Any] = NO_CHANGES
) -> Path:
    """Save a random model of a family that the tokenizer fits.

    Args:
        sizes: other values for settings that the family has.
    """
    model = FAMILY[family]
    chosen = {**model.size, **model.settings}
    chosen |= {name: size for name, size in sizes.items() if name in chosen}
    chosen |= {name: len(tokenizer) for name in ("vocab_size", "vocab_size_per_layer_input") if name in chosen}
    chosen |= {"max_position_embeddings": 512, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    random_model(model.build_config({**chosen, "pad_token_id": tokenizer.pad_token_id}), folder)
    tokenizer.save_pretrained(folder)
    return folder


def lora_layers(family: str, folder: Path) -> list[str]:
    """Linear layers of a family's model that peft can adapt."""
    backbone = load_backbone(ModelSettings(path=str(folder)), torch.device("cpu"), torch.float32)
    return [name for name in linear_layer_names(backbone) if name not in LEFT_OUT.get(family, ())]
