"""The decoder of the Llama family (Llama, Qwen2, Qwen3, Mistral, …) without the cost of the modules around it.

For a small model, or one new token a row, a forward spends as long on module calls and on many small operations as on
arithmetic. This one runs the same weights with half the operations: norms in one call, queries and keys rotated
together. What cannot be told from a model's structure is settled when it is loaded: a decoder whose results are not
those of its own forward is not used.
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
NORMS = {"q_norm", "k_norm"}  # of Qwen3's queries and keys


def fits(decoder: nn.Module) -> bool:
    """Whether a decoder has the parts of the family, and no others."""
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
    """What a layer makes of the residual stream, [N, D] → [N, D]."""
    x = x + _attend(layer.self_attn, normalised(layer.input_layernorm, x), cos, turned, plan, routing)
    return x + feed_forward(normalised(layer.post_attention_layernorm, x), layer.mlp, routing)


def fused_forward(
    decoder: Any, ids: Tensor, positions: Tensor, plan: AttentionPlan, routing: Routing,
    through: Callable[..., Tensor] = fused_layer,
) -> Tensor:  # fmt: skip
    """Last hidden states of packed tokens: ``ids`` and ``positions`` [N] → [N, D].

    Args:
        through: computes a layer as :func:`fused_layer` does, and may see to it that its weights are there.
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
