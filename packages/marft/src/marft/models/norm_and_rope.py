"""RMS norm and rotary embedding on packed rows, with gradients in a minimal number of passes.

Autograd would go back through each of their small operations. As a single Function, each saves only its inputs and has
an explicit gradient:

- ``y = w x / s`` with ``s² = mean(x²) + ε`` has ``dx = (w dy − x (w dy · x) / (n s²)) / s``;
- the gradient of a rotation is the inverse rotation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import rms_norm


def apply_rms_norm(norm: Any, x: Tensor) -> Tensor:
    """Apply an RMS norm (Zhang and Sennrich 2019) over the last dimension, in float32 or better."""
    exact, dtype = torch.promote_types(x.dtype, torch.float32), norm.weight.dtype
    inputs = x.to(exact), norm.weight.to(exact), norm.variance_epsilon
    if norm.weight.requires_grad or not torch.is_grad_enabled():
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
        return _rotate_pairs(q_NHD, k_NKD, cos_N1D, signed_sin_N1D)
    q, k = _Rope.apply(q_NHD, k_NKD, cos_N1D, signed_sin_N1D)  # type: ignore[no-untyped-call]
    return q, k


def _rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return rms_norm(x, (x.shape[-1],), weight, epsilon)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.epsilon = epsilon
        return _rms_norm(x, weight, epsilon)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        size = x.shape[-1]
        inverse = (torch.linalg.vecdot(x, x).div_(size).add_(ctx.epsilon)).rsqrt_()[..., None]
        scaled_grad = grad * weight
        projection = torch.linalg.vecdot(scaled_grad, x)[..., None].mul_(inverse**3).div_(-size)
        return scaled_grad.mul_(inverse).addcmul_(x, projection), None, None


def _rotate_pairs(q: Tensor, k: Tensor, cos: Tensor, signed_sin: Tensor) -> tuple[Tensor, Tensor]:
    both, half = torch.cat((q, k), 1), q.shape[-1] // 2
    swapped = torch.cat((both[..., half:], both[..., :half]), -1)
    both = torch.addcmul(both * cos, swapped, signed_sin).to(q.dtype)
    return both[:, : q.shape[1]], both[:, q.shape[1] :]


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, signed_sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, signed_sin)
        return _rotate_pairs(q, k, cos, signed_sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, signed_sin = ctx.saved_tensors
        half = cos.shape[-1] // 2
        input_grads = []
        for grad in grads:
            out = grad * cos
            out[..., :half].addcmul_(grad[..., half:], signed_sin[..., half:])
            out[..., half:].addcmul_(grad[..., :half], signed_sin[..., :half])
            input_grads.append(out.to(grad.dtype))
        return *input_grads, None, None
