"""Float32 residual stream for half-precision models.

Every layer adds to the residual stream. Rounding it each time causes a large part of the difference between decoding
and scoring. In bfloat16, a model with 30 layers would round its largest numbers 60 times. Inputs are rounded where they
enter a product with half-precision weights. Norms and rotary embeddings are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


def use_fp32_residual(decoder: nn.Module, is_enabled: Callable[[], bool]) -> None:
    """Register hooks for a float32 residual stream that starts at the embeddings.

    Modules with weight matrices receive their inputs in their own precision.

    Args:
        is_enabled: whether to use the float32 stream, evaluated at every forward.
    """

    def cast_output(_: nn.Module, __: object, out: Tensor) -> Tensor:
        return out.float() if is_enabled() else out

    def cast_inputs(module: nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...] | None:
        return tuple(_cast_to_weight(_weight_matrix(module), x) for x in inputs) if is_enabled() else None

    for module in decoder.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(cast_output)
        elif _weight_matrix(module) is not None:
            module.register_forward_pre_hook(cast_inputs)


def _weight_matrix(module: nn.Module) -> Tensor | None:
    """Return a module's own weight matrix, if any: linear layer, router or experts."""
    return next((weight for weight in module.parameters(recurse=False) if weight.dim() > 1), None)


def _cast_to_weight(matrix: Tensor | None, x: object) -> object:
    """Convert ``x`` to the dtype of a matrix."""
    return x.to(matrix.dtype) if matrix is not None and isinstance(x, Tensor) and x.is_floating_point() else x
