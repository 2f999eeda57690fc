"""The residual stream of a half-precision model, kept in float32.

Every layer adds to the stream. To round the whole of it each time is a good part of what decoding and scoring differ
by: in bfloat16 a model of 30 layers would round its largest numbers 60 times. What is multiplied with half-precision
weights is rounded where it enters the product; norms and rotations are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def widen(decoder: nn.Module, wanted: Callable[[], bool]) -> None:
    """Have embeddings begin a float32 stream, and everything that multiplies take part of it in its own precision.

    Args:
        wanted: whether to, asked at every forward.
    """
    for module in decoder.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(lambda _, __, out: out.float() if wanted() else out)
        elif (weight := _multiplies(module)) is not None:
            dtype = weight.dtype
            module.register_forward_pre_hook(
                lambda _, given, dtype=dtype: tuple(_rounded(x, dtype) for x in given) if wanted() else None
            )


def _multiplies(module: nn.Module) -> Tensor | None:
    """The matrix of a module that has one of its own: linear layers, routers, experts."""
    return next((weight for weight in module.parameters(recurse=False) if weight.dim() > 1), None)


def _rounded(x: Any, dtype: torch.dtype) -> Any:
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
