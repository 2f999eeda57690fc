"""Decoder forward for the Llama family (Llama, Qwen2, Qwen3, Mistral, …) without module overhead.

For a small model, or for one new token per row, module calls and many small operations take as long as the arithmetic.
This forward uses the same weights with half the operations: each norm is one call, and queries and keys are rotated
together. A model's structure does not prove equal results. Therefore a check at load time compares the results with the
model's own forward, and rejects this forward if they differ.

Autograd would go back through each small operation of norms and rotary embeddings. As a single Function, each saves
only its inputs and has an explicit gradient:

- ``y = w x / s`` with ``s² = mean(x²) + ε`` has ``dx = (w dy − x (w dy · x) / (n s²)) / s``;
- the gradient of a rotation is the inverse rotation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import rms_norm

from marft.models.attention import AttentionPlan, AttentionSpec
from marft.models.devices import AutogradContext, is_on_cpu
from marft.models.linear_layers import feed_forward, project
from marft.models.lora import Routing

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
    cos, signed_sin = rotary_factors(decoder, x, positions)
    for layer in decoder.layers:
        x = run_layer(layer, x, cos, signed_sin, plan, routing)
    return apply_rms_norm(decoder.norm, x)


def rotary_factors(decoder: Any, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of :func:`apply_rope` for tokens at these positions, [N, 1, head] each."""
    cos, sin = (part[0, :, None] for part in decoder.rotary_emb(x[None], positions[None]))
    half = cos.shape[-1] // 2
    return cos, torch.cat((-sin[..., :half], sin[..., half:]), -1)


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


def apply_rms_norm(norm: Any, x: Tensor) -> Tensor:
    """Apply an RMS norm (Zhang and Sennrich 2019) over the last dimension, in float32 or better.

    On a GPU, PyTorch has kernels for the norm and for its gradient.
    """
    exact, dtype = torch.promote_types(x.dtype, torch.float32), norm.weight.dtype
    inputs = x.to(exact), norm.weight.to(exact), norm.variance_epsilon
    if norm.weight.requires_grad or not torch.is_grad_enabled() or not is_on_cpu(x):
        return _rms_norm(*inputs).to(dtype)
    out: Tensor = _RmsNorm.apply(*inputs)  # type: ignore[no-untyped-call]
    return out.to(dtype)


def apply_rope(q_NHD: Tensor, k_NKD: Tensor, cos_N1D: Tensor, signed_sin_N1D: Tensor) -> tuple[Tensor, Tensor]:
    """Apply rotary embeddings (Su et al. 2021) to queries and keys, with Llama's pairs i and i + D/2.

    Args:
        cos_N1D: cosine factors.
        signed_sin_N1D: factors for the other element of a pair, ``-sin`` in the first half and ``sin`` in the second.
    """
    if not torch.is_grad_enabled():
        return rotate_pairs(q_NHD, k_NKD, cos_N1D, signed_sin_N1D)
    q, k = _Rope.apply(q_NHD, k_NKD, cos_N1D, signed_sin_N1D)  # type: ignore[no-untyped-call]
    return q, k


def _rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return rms_norm(x, (x.shape[-1],), weight, epsilon)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.epsilon = epsilon
        return _rms_norm(x, weight, epsilon)

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, grad: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        size = x.shape[-1]
        inverse = (torch.linalg.vecdot(x, x).div_(size).add_(ctx.epsilon)).rsqrt_()[..., None]
        scaled_grad = grad * weight
        projection = torch.linalg.vecdot(scaled_grad, x)[..., None].mul_(inverse**3).div_(-size)
        return scaled_grad.mul_(inverse).addcmul_(x, projection), None, None


def rotate_pairs(q: Tensor, k: Tensor, cos: Tensor, signed_sin: Tensor) -> tuple[Tensor, Tensor]:
    """Apply rotary embeddings as :func:`apply_rope`, without a gradient of its own."""
    both, half = torch.cat((q, k), 1), q.shape[-1] // 2
    swapped = torch.cat((both[..., half:], both[..., :half]), -1)
    both = torch.addcmul(both * cos, swapped, signed_sin).to(q.dtype)
    return both[:, : q.shape[1]], both[:, q.shape[1] :]


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: AutogradContext, q: Tensor, k: Tensor, cos: Tensor, signed_sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, signed_sin)
        return rotate_pairs(q, k, cos, signed_sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, signed_sin = ctx.saved_tensors
        half = cos.shape[-1] // 2
        input_grads = []
        for grad in grads:
            out = grad * cos
            out[..., :half].addcmul_(grad[..., half:], signed_sin[..., half:])
            out[..., half:].addcmul_(grad[..., :half], signed_sin[..., :half])
            input_grads.append(out.to(grad.dtype))
        return *input_grads, None, None
