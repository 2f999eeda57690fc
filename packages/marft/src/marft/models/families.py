"""Known model families and their forward modes, determined from a small random model per family.

python -m marft.models.families      # writes the table in docs/models.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from marft.models import attention
from marft.models.alone import one_at_a_time
from marft.models.backbone import Backbone
from marft.models.forward_check import settle_forward

PAGE = Path(__file__).parents[5] / "docs" / "models.md"
SMALL = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": None,
}  # fmt: skip
STATES = {name: SMALL[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "pad_token_id")}
HEADS = {"head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LINEAR = {
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 15e4, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 64,
}  # fmt: skip
SCALED = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
    "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 6,
}  # fmt: skip
GRANITE = {
    "logits_scaling": 4.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2, "embedding_multiplier": 3.0,
}  # fmt: skip
CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 6.0}
LOCAL = {"sliding_window": 6}


@dataclass(frozen=True, slots=True)
class Family:
    """Model family, defined by the configuration of small members."""

    name: str
    checkpoints: str  # well-known checkpoints
    config: str  # configuration class in transformers
    settings: Mapping[str, Any] = field(default_factory=dict)
    size: Mapping[str, Any] = field(default_factory=lambda: SMALL)

    def small_config(self) -> PreTrainedConfig:
        """Return the configuration for a small model, with active windows, caps and scales."""
        settings = {**self.size, **self.settings}
        return getattr(transformers, self.config)(**settings)  # type: ignore[no-any-return]


FAMILIES = (
    Family("Qwen 2", "Qwen2.5-0.5B to 72B, DeepSeek-R1-Distill-Qwen", "Qwen2Config"),
    Family("Qwen 3", "Qwen3-0.6B to 32B", "Qwen3Config", HEADS),
    Family("Qwen 3 with experts", "Qwen3-30B-A3B", "Qwen3MoeConfig", {**HEADS, **EXPERTS}),
    Family("Llama", "Llama-3.1, 3.2, SmolLM2, TinyLlama", "LlamaConfig", {"rope_parameters": LLAMA3}),
    Family("Mistral", "Mistral-7B", "MistralConfig", LOCAL),
    Family("Ministral 3", "Ministral-3-3B to 14B", "Ministral3Config", {**HEADS, "rope_parameters": SCALED}),
    Family("Mixtral", "Mixtral-8x7B", "MixtralConfig", LOCAL_EXPERTS),
    Family("SmolLM 3", "SmolLM3-3B", "SmolLM3Config", {"num_hidden_layers": 4}),
    Family("Gemma 2", "gemma-2-2b, 9b, 27b", "Gemma2Config", {**HEADS, **LOCAL, **CAPS, "query_pre_attn_scalar": 16}),
    Family(
        "Gemma 3", "gemma-3-270m, 1b", "Gemma3TextConfig",
        {**HEADS, **LOCAL, "num_hidden_layers": 6, "query_pre_attn_scalar": 16},
    ),
    Family("Phi 3, 4", "Phi-3.5-mini, Phi-4-mini, phi-4", "Phi3Config"),
    Family("OLMo 2", "OLMo-2-1B to 32B", "Olmo2Config"),
    Family("OLMo 3", "Olmo-3-7B, 32B", "Olmo3Config", {**LOCAL, "num_hidden_layers": 4}),
    Family("GLM 4", "GLM-4-9B, 32B", "Glm4Config", HEADS),
    Family("Granite 3", "granite-3.3-2b, 8b", "GraniteConfig", GRANITE),
    Family("Granite 3 with experts", "granite-3.1-1b-a400m", "GraniteMoeConfig", {**GRANITE, **LOCAL_EXPERTS}),
    Family(
        "Cohere 2", "command-r7b, command-a", "Cohere2Config", {**LOCAL, "logit_scale": 0.25, "num_hidden_layers": 4}
    ),
    Family("gpt-oss", "gpt-oss-20b", "GptOssConfig", {**HEADS, **LOCAL, **LOCAL_EXPERTS, "rope_parameters": YARN}),
    Family("DeepSeek 3", "Moonlight-16B-A3B, Kimi-K2", "DeepseekV3Config", LATENT),
    Family("EXAONE 4", "EXAONE-4.0-1.2B, 32B", "Exaone4Config", {"num_hidden_layers": 4}),
    Family("Seed-OSS", "Seed-OSS-36B", "SeedOssConfig", HEADS),
    Family("ERNIE 4.5", "ERNIE-4.5-0.3B", "Ernie4_5Config", HEADS),
    Family("StarCoder 2", "starcoder2-3b to 15b", "Starcoder2Config", LOCAL),
    Family(
        "Qwen 3.5", "Qwen3.5-0.8B to 27B", "Qwen3_5TextConfig", {**HEADS, **LINEAR, "num_hidden_layers": 4}
    ),
    Family(
        "Qwen 3 Next", "Qwen3-Next-80B-A3B", "Qwen3NextConfig",
        {**HEADS, **LINEAR, **EXPERTS, "shared_expert_intermediate_size": 24, "num_hidden_layers": 4},
    ),
    Family(
        "Granite 4 hybrid", "granite-4.0-h-350m to small", "GraniteMoeHybridConfig",
        {**MAMBA, "num_local_experts": 0, "layer_types": ["mamba", "attention"]},
    ),
    Family("Bamba", "Bamba-9B", "BambaConfig", {**MAMBA, "attn_layer_indices": [1]}),
    Family("LFM 2", "LFM2-350M to 2.6B", "Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
    Family("Mamba", "mamba-130m to 2.8b", "MambaConfig", {"state_size": 8}, STATES),
    Family(
        "Mamba 2", "mamba2, Codestral-Mamba", "Mamba2Config",
        {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1}, STATES,
    ),
    Family("Gemma 4", "gemma-4, text", "Gemma4TextConfig", {**HEADS, "vocab_size_per_layer_input": 96}),
    Family(
        "DeepSeek 3.2", "DeepSeek-V3.2", "DeepseekV32Config",
        {**LATENT, "head_dim": 8, "index_topk": 64, "index_head_dim": 16, "index_n_heads": 4},
    ),
    Family("Doge", "Doge-20M to 320M", "DogeConfig", {"keep_window_size": 64}),
    Family("StableLM", "stablelm-2-1_6b", "StableLmConfig"),
    Family("GPT-2", "gpt2", "GPT2Config", {"n_embd": 32, "n_head": 4, "n_layer": 2}, {"vocab_size": 96}),
    Family(
        "Nemotron-H", "Nemotron-Nano-9B-v2", "NemotronHConfig",
        {**HEADS, "layers_block_type": ["mamba", "attention"], "mamba_num_heads": 4, "mamba_head_dim": 16,
         "ssm_state_size": 8, "n_groups": 1},
    ),
    Family("RWKV 4", "rwkv-4-pile", "RwkvConfig", {"attention_hidden_size": 32}, STATES),
)  # fmt: skip
FORWARDS = {"fused": "packed, fused", "packed": "packed", "own": "its own", "refused": "refused"}
BEGIN, END = "<!-- python -m marft.models.families writes this table -->\n\n", "\n<!-- until here -->\n"


@one_at_a_time
def small_backbone(family: Family, dtype: torch.dtype = torch.float32) -> Backbone:
    """Build a small random model for a family, with its forward mode selected.

    Raises:
        ValueError: no forward mode supports the model.
    """
    attention.register()
    config = family.small_config()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=attention.implementation_for(config)
        )
        enlarge(model)
    backbone = Backbone(model.to(dtype).eval().requires_grad_(False), 256)
    settle_forward(backbone, family.name)
    return backbone


@torch.no_grad()
def enlarge(model: PreTrainedModel) -> None:
    """Scale up a random model's weights, to move its logits far from uniform."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=1.5 * parameter.shape[-1] ** -0.5)
        else:
            parameter.add_(torch.randn_like(parameter), alpha=0.2)


def forward_of(backbone: Backbone) -> str:
    """Return the name of a backbone's forward mode: a key in :data:`FORWARDS`."""
    return "own" if backbone.plain else "fused" if backbone.fused else "packed"


def page() -> str:
    """Render docs/models.md with the current table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table = ["| family | such as | forward | linear layers |", "| --- | --- | --- | --- |", *map(_line, FAMILIES)]
    return before + BEGIN + "\n".join(table) + "\n" + END + rest.partition(END)[2]


def _line(family: Family) -> str:
    try:
        backbone = small_backbone(family)
    except ValueError:
        return f"| {family.name} | {family.checkpoints} | {FORWARDS['refused']} | |"
    names = ", ".join(f"`{name}`" for name in linear_layers(backbone))
    return f"| {family.name} | {family.checkpoints} | {FORWARDS[forward_of(backbone)]} | {names} |"


def linear_layers(backbone: Backbone) -> list[str]:
    """Return the valid names for ``lora.targets``, without the head."""
    return sorted(set(_linear_names(backbone)))


def _linear_names(backbone: Backbone) -> Iterator[str]:
    for name, module in backbone.model.named_modules():
        if isinstance(module, nn.Linear) and module is not backbone.head:
            yield name.rpartition(".")[2]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
