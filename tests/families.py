"""Small random models of each family, saved to be loaded."""

from __future__ import annotations

from pathlib import Path

import torch
from tools.model_families import MODEL_FAMILIES, scale_up_weights
from transformers import AutoModelForCausalLM, PreTrainedConfig

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


def random_model(config: PreTrainedConfig, folder: Path) -> Path:
    """Save a random model whose logits are far from uniform."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    scale_up_weights(model)
    model.save_pretrained(folder)
    return folder
