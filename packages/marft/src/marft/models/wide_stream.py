"""Float32 residual stream for half-precision models.

Every layer adds to the residual stream. Rounding it each time causes a large part of the difference between decoding
and scoring. In bfloat16, a model with 30 layers would round its largest numbers 60 times. Inputs are rounded where they
enter a product with half-precision weights. Norms and rotary embeddings are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


def widen(decoder: nn.Module, wanted: Callable[[], bool]) -> None:
    """Register hooks for a float32 residual stream that starts at the embeddings.

    Modules with weight matrices receive their inputs in their own precision.

    Args:
        wanted: whether to use the float32 stream, evaluated at every forward.
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
    """Return a module's own weight matrix, if any: linear layer, router or experts."""
    return next((weight for weight in module.parameters(recurse=False) if weight.dim() > 1), None)


def _rounded_for(matrix: Tensor | None, x: object) -> object:
    """Convert ``x`` to the dtype of a matrix."""
    return x.to(matrix.dtype) if matrix is not None and isinstance(x, Tensor) and x.is_floating_point() else x
