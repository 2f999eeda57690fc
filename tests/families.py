"""Small random models of each family, for tests: configurations whose windows, caps, sinks and scales bite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

SMALL = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": None,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 15e4, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 64,
}  # fmt: skip
GRANITE = {
    "logits_scaling": 4.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2, "embedding_multiplier": 3.0,
}  # fmt: skip

PACKED: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen 2, 2.5": ("Qwen2Config", {}),
    "Qwen 3": ("Qwen3Config", {"head_dim": 16}),
    "Qwen 3 with experts": ("Qwen3MoeConfig", {"head_dim": 16, **EXPERTS}),
    "Llama 3": ("LlamaConfig", {"rope_parameters": LLAMA3}),
    "Mistral": ("MistralConfig", {"sliding_window": 6}),
    "SmolLM 3": ("SmolLM3Config", {"num_hidden_layers": 4}),
    "Gemma 2": (
        "Gemma2Config",
        {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0,
         "final_logit_softcapping": 6.0},
    ),
    "Gemma 3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": 6, "num_hidden_layers": 6, "query_pre_attn_scalar": 16}),
    "Phi 3, 4": ("Phi3Config", {}),
    "OLMo 2": ("Olmo2Config", {}),
    "GLM 4": ("Glm4Config", {"head_dim": 16}),
    "Granite 3": ("GraniteConfig", GRANITE),
    "Cohere 2": ("Cohere2Config", {"logit_scale": 0.25, "sliding_window": 6, "num_hidden_layers": 4}),
    "gpt-oss": (
        "GptOssConfig",
        {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6, "rope_parameters": YARN},
    ),
}  # fmt: skip
FAST = ("Qwen 2, 2.5", "Gemma 2", "gpt-oss")  # tested without --slow


def config_of(name: str) -> PreTrainedConfig:
    kind, settings = PACKED[name]
    config: Callable[..., PreTrainedConfig] = getattr(transformers, kind)
    return config(**{**SMALL, **settings})


def random_model(config: PreTrainedConfig, folder: Path) -> Path:
    """Save a random model whose logits are far from uniform."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    enlarge(model)
    model.save_pretrained(folder)
    return folder


@torch.no_grad()
def enlarge(model: PreTrainedModel) -> None:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=1.5 * parameter.shape[-1] ** -0.5)
        else:
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
