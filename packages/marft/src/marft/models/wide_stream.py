"""The residual stream of a half-precision model, kept in float32.

Every layer adds to the stream. To round the whole of it each time is a good part of what decoding and scoring differ
by: in bfloat16 a model of 30 layers would round its largest numbers 60 times. What is multiplied with half-precision
weights is rounded where it enters the product; norms and rotations are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


def widen(decoder: nn.Module, wanted: Callable[[], bool]) -> None:
    """Have embeddings begin a float32 stream, and everything that multiplies take part of it in its own precision.

    Args:
        wanted: whether to, asked at every forward.
    """

    def begin(_: nn.Module, __: object, out: Tensor) -> Tensor:
        return out.float() if wanted() else out

    def enter(module: nn.Module, given: tuple[object, ...]) -> tuple[object, ...] | None:
        return tuple(_rounded_for(_matrix(module), x) for x in given) if wanted() else None

    for module in decoder.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(begin)
        elif _matrix(module) is not None:
            module.register_forward_pre_hook(enter)


def _matrix(module: nn.Module) -> Tensor | None:
    """The weights of a module that has matrices of its own: linear layers, routers, experts."""
    return next((weight for weight in module.parameters(recurse=False) if weight.dim() > 1), None)


def _rounded_for(matrix: Tensor | None, x: object) -> object:
    """``x`` in the precision of what it will be multiplied with."""
    return x.to(matrix.dtype) if matrix is not None and isinstance(x, Tensor) and x.is_floating_point() else x
