"""Decoder forward for the Llama family (Llama, Qwen2, Qwen3, Mistral, …) without module overhead.

For a small model, or for one new token per row, module calls and many small operations take as long as the arithmetic.
This forward uses the same weights with half the operations: each norm is one call, and queries and keys are rotated
together. A model's structure does not prove equal results. Therefore a check at load time compares the results with the
model's own forward, and rejects this forward if they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from marft.models.attention import AttentionPlan
from marft.models.attention_spec import AttentionSpec
from marft.models.linear_layers import feed_forward, project
from marft.models.lora import Routing
from marft.models.norm_and_rope import apply_rms_norm, apply_rope

DECODER_MODULES = {"embed_tokens", "layers", "norm", "rotary_emb"}
LAYER_MODULES = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION_MODULES = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP_MODULES = {"gate_proj", "up_proj", "down_proj", "act_fn"}
NORM_MODULES = {"q_norm", "k_norm"}  # Qwen3's query and key norms


def supports_fused(decoder: nn.Module) -> bool:
    """Return whether a decoder has exactly the modules of the Llama family."""
    layers = getattr(decoder, "layers", None)
    return (
        isinstance(layers, nn.ModuleList)
        and _child_names(decoder) == DECODER_MODULES
        and all(
            _child_names(layer) == LAYER_MODULES
            and _child_names(layer.self_attn) - NORM_MODULES == ATTENTION_MODULES  # type: ignore[arg-type]
            and _child_names(layer.mlp) == MLP_MODULES  # type: ignore[arg-type]
            and hasattr(layer.input_layernorm, "variance_epsilon")
            for layer in layers
        )
    )


def fused_layer(
    layer: Any, x: Tensor, cos: Tensor, signed_sin: Tensor, plan: AttentionPlan, routing: Routing
) -> Tensor:
    """Apply a decoder layer to the residual stream, [N, D] → [N, D]."""
    x = x + _self_attention(layer.self_attn, apply_rms_norm(layer.input_layernorm, x), cos, signed_sin, plan, routing)
    return x + feed_forward(apply_rms_norm(layer.post_attention_layernorm, x), layer.mlp, routing)


def fused_forward(
    decoder: Any,
    ids: Tensor,
    positions: Tensor,
    plan: AttentionPlan,
    routing: Routing,
    run_layer: Callable[..., Tensor] = fused_layer,
) -> Tensor:
    """Return the last hidden states for packed tokens, [N, D].

    Args:
        ids: token ids, [N].
        positions: positions in their rows, [N].
        run_layer: layer function with the signature of :func:`fused_layer`, which may gather the layer's weights first.
    """
    x = decoder.embed_tokens(ids)
    cos, sin = (part[0, :, None] for part in decoder.rotary_emb(x[None], positions[None]))  # [N, 1, head]
    half = cos.shape[-1] // 2
    signed_sin = torch.cat((-sin[..., :half], sin[..., half:]), -1)
    for layer in decoder.layers:
        x = run_layer(layer, x, cos, signed_sin, plan, routing)
    return apply_rms_norm(decoder.norm, x)


def _self_attention(
    attention: Any, x: Tensor, cos: Tensor, signed_sin: Tensor, plan: AttentionPlan, routing: Routing
) -> Tensor:
    tokens, head = len(x), attention.head_dim
    projected = project(x, (attention.q_proj, attention.k_proj, attention.v_proj), routing)
    q, k, v = (part.reshape(tokens, -1, head) for part in projected)
    if hasattr(attention, "q_norm"):
        q, k = apply_rms_norm(attention.q_norm, q), apply_rms_norm(attention.k_norm, k)
    q, k = apply_rope(q, k, cos, signed_sin)
    window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
    out = plan.attend(attention.layer_idx, q, k, v, AttentionSpec(attention.scaling, window))
    return project(out.reshape(tokens, -1), (attention.o_proj,), routing)[0]


def _child_names(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}
