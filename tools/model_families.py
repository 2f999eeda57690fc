"""Known model families and their forward modes, determined from a small random model per family.

python tools/model_families.py      # writes the table in docs/models.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from marft.models import attention
from marft.models.backbone import Backbone
from marft.models.forward_check import select_forward
from marft.models.load_lock import with_load_lock

DOCS_PAGE = Path(__file__).parents[1] / "docs" / "models.md"
COSTS_FILE = Path(__file__).parents[1] / "benchmarks" / "results" / "family_costs.json"  # from tools/family_costs.py
SMALL_CONFIG = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": None,
}  # fmt: skip
STATE_SPACE_CONFIG = {
    name: SMALL_CONFIG[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "pad_token_id")
}
HEADS_CONFIG = {"head_dim": 16}
EXPERTS_CONFIG = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LOCAL_EXPERTS_CONFIG = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT_CONFIG = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
SHARED_EXPERTS_CONFIG = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
LINEAR_CONFIG = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
MAMBA_CONFIG = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
NEMOTRON_CONFIG = {**HEADS_CONFIG, "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 15e4,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 64,
}
SCALED_ROPE = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
    "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 6,
}  # fmt: skip
DEEPSEEK_ROPE = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 64,
}  # fmt: skip
PARTIAL_ROPE_CONFIG = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5}}
GRANITE_CONFIG = {
    "logits_scaling": 4.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
}
SOFTCAP_CONFIG = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 6.0}
WINDOW_CONFIG = {"sliding_window": 6}


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """Model family, defined by the configuration of small members."""

    name: str
    checkpoints: str  # well-known checkpoints
    config_class: str  # configuration class in transformers
    settings: Mapping[str, Any] = field(default_factory=dict)
    size: Mapping[str, Any] = field(default_factory=lambda: SMALL_CONFIG)

    def small_config(self) -> PreTrainedConfig:
        """Return the configuration for a small model, with active windows, caps and scales."""
        return self.build_config({**self.size, **self.settings})

    def build_config(self, settings: Mapping[str, Any]) -> PreTrainedConfig:
        """Return the configuration for a model with these settings."""
        return getattr(transformers, self.config_class)(**settings)  # type: ignore[no-any-return]


MODEL_FAMILIES = (
    ModelFamily("Qwen 2", "Qwen2.5-0.5B to 72B, DeepSeek-R1-Distill-Qwen", "Qwen2Config"),
    ModelFamily("Qwen 3", "Qwen3-0.6B to 32B", "Qwen3Config", HEADS_CONFIG),
    ModelFamily("Qwen 3 with experts", "Qwen3-30B-A3B", "Qwen3MoeConfig", {**HEADS_CONFIG, **EXPERTS_CONFIG}),
    ModelFamily("Llama", "Llama-3.1, 3.2, SmolLM2, TinyLlama", "LlamaConfig", {"rope_parameters": LLAMA3_ROPE}),
    ModelFamily("Mistral", "Mistral-7B", "MistralConfig", WINDOW_CONFIG),
    ModelFamily(
        "Ministral 3", "Ministral-3-3B to 14B", "Ministral3Config", {**HEADS_CONFIG, "rope_parameters": SCALED_ROPE}
    ),
    ModelFamily("Mixtral", "Mixtral-8x7B", "MixtralConfig", LOCAL_EXPERTS_CONFIG),
    ModelFamily("SmolLM 3", "SmolLM3-3B", "SmolLM3Config", {"num_hidden_layers": 4}),
    ModelFamily(
        "Gemma 2",
        "gemma-2-2b, 9b, 27b",
        "Gemma2Config",
        {**HEADS_CONFIG, **WINDOW_CONFIG, **SOFTCAP_CONFIG, "query_pre_attn_scalar": 16},
    ),
    ModelFamily(
        "Gemma 3",
        "gemma-3-270m, 1b",
        "Gemma3TextConfig",
        {**HEADS_CONFIG, **WINDOW_CONFIG, "num_hidden_layers": 6, "query_pre_attn_scalar": 16},
    ),
    ModelFamily("Phi 3, 4", "Phi-3.5-mini, Phi-4-mini, phi-4", "Phi3Config"),
    ModelFamily("OLMo 2", "OLMo-2-1B to 32B", "Olmo2Config"),
    ModelFamily("OLMo 3", "Olmo-3-7B, 32B", "Olmo3Config", {**WINDOW_CONFIG, "num_hidden_layers": 4}),
    ModelFamily("GLM 4", "GLM-4-9B, 32B", "Glm4Config", HEADS_CONFIG),
    ModelFamily("Granite 3", "granite-3.3-2b, 8b", "GraniteConfig", GRANITE_CONFIG),
    ModelFamily(
        "Granite 3 with experts",
        "granite-3.1-1b-a400m",
        "GraniteMoeConfig",
        {**GRANITE_CONFIG, **LOCAL_EXPERTS_CONFIG},
    ),
    ModelFamily(
        "Cohere 2",
        "command-r7b, command-a",
        "Cohere2Config",
        {**WINDOW_CONFIG, "logit_scale": 0.25, "num_hidden_layers": 4},
    ),
    ModelFamily(
        "gpt-oss",
        "gpt-oss-20b",
        "GptOssConfig",
        {**HEADS_CONFIG, **WINDOW_CONFIG, **LOCAL_EXPERTS_CONFIG, "rope_parameters": YARN_ROPE},
    ),
    ModelFamily("DeepSeek 3", "Moonlight-16B-A3B, Kimi-K2", "DeepseekV3Config", LATENT_CONFIG),
    ModelFamily(
        "DeepSeek 3 with expert groups",
        "DeepSeek-V3, R1",
        "DeepseekV3Config",
        {**LATENT_CONFIG, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "rope_parameters": DEEPSEEK_ROPE},
    ),
    ModelFamily(
        "GLM 4 with experts",
        "GLM-4.5-Air, GLM-4.6",
        "Glm4MoeConfig",
        {**HEADS_CONFIG, **SHARED_EXPERTS_CONFIG, "attention_bias": True, "use_qk_norm": True},
    ),
    ModelFamily("EXAONE 4", "EXAONE-4.0-1.2B, 32B", "Exaone4Config", {"num_hidden_layers": 4}),
    ModelFamily("Seed-OSS", "Seed-OSS-36B", "SeedOssConfig", HEADS_CONFIG),
    ModelFamily("ERNIE 4.5", "ERNIE-4.5-0.3B", "Ernie4_5Config", HEADS_CONFIG),
    ModelFamily(
        "ERNIE 4.5 with experts",
        "ERNIE-4.5-21B-A3B",
        "Ernie4_5_MoeConfig",
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24, "moe_num_shared_experts": 2},
    ),
    ModelFamily(
        "MiniMax M2", "MiniMax-M2", "MiniMaxM2Config", {**HEADS_CONFIG, **LOCAL_EXPERTS_CONFIG, **PARTIAL_ROPE_CONFIG}
    ),
    ModelFamily("StarCoder 2", "starcoder2-3b to 15b", "Starcoder2Config", WINDOW_CONFIG),
    ModelFamily(
        "Qwen 3.5",
        "Qwen3.5-0.8B to 27B",
        "Qwen3_5TextConfig",
        {**HEADS_CONFIG, **LINEAR_CONFIG, "num_hidden_layers": 4},
    ),
    ModelFamily(
        "Qwen 3 Next",
        "Qwen3-Next-80B-A3B",
        "Qwen3NextConfig",
        {
            **HEADS_CONFIG,
            **LINEAR_CONFIG,
            **EXPERTS_CONFIG,
            "shared_expert_intermediate_size": 24,
            "num_hidden_layers": 4,
        },
    ),
    ModelFamily(
        "Granite 4 hybrid",
        "granite-4.0-h-350m to small",
        "GraniteMoeHybridConfig",
        {**MAMBA_CONFIG, "num_local_experts": 0, "layer_types": ["mamba", "attention"]},
    ),
    ModelFamily("Bamba", "Bamba-9B", "BambaConfig", {**MAMBA_CONFIG, "attn_layer_indices": [1]}),
    ModelFamily("LFM 2", "LFM2-350M to 2.6B", "Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
    ModelFamily("Mamba", "mamba-130m to 2.8b", "MambaConfig", {"state_size": 8}, STATE_SPACE_CONFIG),
    ModelFamily(
        "Mamba 2",
        "mamba2, Codestral-Mamba",
        "Mamba2Config",
        {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1},
        STATE_SPACE_CONFIG,
    ),
    ModelFamily(
        "Llama 4",
        "Llama-4-Scout, Maverick, text",
        "Llama4TextConfig",
        {
            **HEADS_CONFIG,
            "num_local_experts": 4,
            "intermediate_size_mlp": 64,
            "interleave_moe_layer_step": 2,
            "num_hidden_layers": 4,
            "attention_chunk_size": 6,
            "floor_scale": 6,
        },
    ),
    ModelFamily(
        "Gemma 4",
        "gemma-4, text",
        "Gemma4TextConfig",
        {
            **HEADS_CONFIG,
            "vocab_size_per_layer_input": 96,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 24,
        },
    ),
    ModelFamily(
        "DeepSeek 3.2",
        "DeepSeek-V3.2",
        "DeepseekV32Config",
        {**LATENT_CONFIG, "head_dim": 8, "index_topk": 64, "index_head_dim": 16, "index_n_heads": 4},
    ),
    ModelFamily("Doge", "Doge-20M to 320M", "DogeConfig", {"keep_window_size": 64}),
    ModelFamily("StableLM", "stablelm-2-1_6b", "StableLmConfig"),
    ModelFamily("GPT-2", "gpt2", "GPT2Config", {"n_embd": 32, "n_head": 4, "n_layer": 2}, {"vocab_size": 96}),
    ModelFamily(
        "Nemotron-H",
        "Nemotron-Nano-9B-v2",
        "NemotronHConfig",
        {**NEMOTRON_CONFIG, "layers_block_type": ["mamba", "attention"]},
    ),
    ModelFamily(
        "Nemotron 3",
        "Nemotron-3-Nano-30B-A3B",
        "NemotronHConfig",
        {
            **NEMOTRON_CONFIG,
            **SHARED_EXPERTS_CONFIG,
            "moe_shared_expert_intermediate_size": 24,
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "moe", "attention", "mlp"],
        },
    ),
    ModelFamily("RWKV 4", "rwkv-4-pile", "RwkvConfig", {"attention_hidden_size": 32}, STATE_SPACE_CONFIG),
)
FORWARD_NAMES = {"fused": "packed, fused", "packed": "packed", "own": "its own", "refused": "refused"}
TABLE_BEGIN, TABLE_END = (
    "<!-- python tools/model_families.py writes this table -->\n\n",
    "\n<!-- until here -->\n",
)


def build_small_backbone(family: ModelFamily, dtype: torch.dtype = torch.float32) -> Backbone:
    """Build a small random model for a family, as :func:`build_backbone`."""
    return build_backbone(family.name, family.small_config(), dtype)


@with_load_lock
def build_backbone(label: str, config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> Backbone:
    """Build a random model, with its forward mode selected.

    Args:
        label: the model's name in errors.

    Raises:
        ValueError: no forward mode supports the model.
    """
    attention.register_attention()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=attention.attention_implementation(config)
        )
        scale_up_weights(model)
    backbone = Backbone(model.to(dtype).eval().requires_grad_(False), 256)
    select_forward(backbone, label)
    return backbone


@torch.no_grad()
def scale_up_weights(model: PreTrainedModel) -> None:
    """Scale up a random model's weights, to move its logits far from uniform."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=1.5 * parameter.shape[-1] ** -0.5)
        else:
            parameter.add_(torch.randn_like(parameter), alpha=0.2)


def forward_name(backbone: Backbone) -> str:
    """Return the name of a backbone's forward mode: a key in :data:`FORWARD_NAMES`."""
    return "own" if backbone.native else "fused" if backbone.fused else "packed"


def render_page() -> str:
    """Render docs/models.md with the current table."""
    before, _, remainder = DOCS_PAGE.read_text(encoding="utf-8").partition(TABLE_BEGIN)
    table = [
        "| family | such as | forward | cost | linear layers |",
        "| --- | --- | --- | --- | --- |",
        *map(_table_row, MODEL_FAMILIES),
    ]
    return before + TABLE_BEGIN + "\n".join(table) + "\n" + TABLE_END + remainder.partition(TABLE_END)[2]


def _table_row(family: ModelFamily) -> str:
    try:
        backbone = build_small_backbone(family)
    except ValueError:
        return f"| {family.name} | {family.checkpoints} | {FORWARD_NAMES['refused']} | | |"
    cost = json.loads(COSTS_FILE.read_text(encoding="utf-8")).get(family.name)
    costs = "" if cost is None else f"{cost['learning']}/{cost['decoding']}"
    names = ", ".join(f"`{name}`" for name in linear_layer_names(backbone))
    return f"| {family.name} | {family.checkpoints} | {FORWARD_NAMES[forward_name(backbone)]} | {costs} | {names} |"


def linear_layer_names(backbone: Backbone) -> list[str]:
    """Return the valid names for ``lora.target_modules``, without the head."""
    names = [name for name in backbone.linear_layers() if backbone.model.get_submodule(name) is not backbone.head]
    return sorted({name.rpartition(".")[2] for name in names})


if __name__ == "__main__":
    DOCS_PAGE.write_text(render_page(), encoding="utf-8")
