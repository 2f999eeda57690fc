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
from marft.models.linear_layers import feed_forward, project
from marft.models.lora import Routing
from marft.models.norms_and_rotations import normalised, rotated
from marft.models.weighing import Weighing

DECODER = {"embed_tokens", "layers", "norm", "rotary_emb"}
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
NORMS = {"q_norm", "k_norm"}  # Qwen3's query and key norms


def fits(decoder: nn.Module) -> bool:
    """Return whether a decoder has exactly the modules of the Llama family."""
    layers = getattr(decoder, "layers", None)
    return (
        isinstance(layers, nn.ModuleList)
        and _parts(decoder) == DECODER
        and all(
            _parts(layer) == LAYER
            and _parts(layer.self_attn) - NORMS == ATTENTION  # type: ignore[arg-type]
            and _parts(layer.mlp) == MLP  # type: ignore[arg-type]
            and hasattr(layer.input_layernorm, "variance_epsilon")
            for layer in layers
        )
    )


def fused_layer(layer: Any, x: Tensor, cos: Tensor, turned: Tensor, plan: AttentionPlan, routing: Routing) -> Tensor:
    """Apply a decoder layer to the residual stream, [N, D] → [N, D]."""
    x = x + _attend(layer.self_attn, normalised(layer.input_layernorm, x), cos, turned, plan, routing)
    return x + feed_forward(normalised(layer.post_attention_layernorm, x), layer.mlp, routing)


def fused_forward(
    decoder: Any, ids: Tensor, positions: Tensor, plan: AttentionPlan, routing: Routing,
    through: Callable[..., Tensor] = fused_layer,
) -> Tensor:  # fmt: skip
    """Return the last hidden states for packed tokens, [N, D].

    Args:
        ids: token ids, [N].
        positions: positions in their rows, [N].
        through: layer function with the signature of :func:`fused_layer`, which may gather the layer's weights first.
    """
    x = decoder.embed_tokens(ids)
    cos, sin = (part[0, :, None] for part in decoder.rotary_emb(x[None], positions[None]))  # [N, 1, head]
    half = cos.shape[-1] // 2
    turned = torch.cat((-sin[..., :half], sin[..., half:]), -1)
    for layer in decoder.layers:
        x = through(layer, x, cos, turned, plan, routing)
    return normalised(decoder.norm, x)


def _attend(attention: Any, x: Tensor, cos: Tensor, turned: Tensor, plan: AttentionPlan, routing: Routing) -> Tensor:
    tokens, head = len(x), attention.head_dim
    made = project(x, (attention.q_proj, attention.k_proj, attention.v_proj), routing)
    q, k, v = (part.reshape(tokens, -1, head) for part in made)
    if hasattr(attention, "q_norm"):
        q, k = normalised(attention.q_norm, q), normalised(attention.k_norm, k)
    q, k = rotated(q, k, cos, turned)
    window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
    out = plan.attend(attention.layer_idx, q, k, v, Weighing(attention.scaling, window))
    return project(out.reshape(tokens, -1), (attention.o_proj,), routing)[0]


def _parts(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}
