"""Attention settings for a layer: scale, window, soft cap and sinks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

SCORES = 2**24  # maximum number of scores held at once


@dataclass(frozen=True, slots=True, eq=False)
class Weighing:
    """Attention settings: scores ``scale · q kᵀ``, soft cap, mask, then softmax with an optional sink per head.

    Args:
        window: number of visible tokens, including the token itself; None for all.
        cap: soft cap, ``cap · tanh(score / cap)`` (Gemma 2: Riviere et al. 2024).
        sinks: [H] additional score per head, with a softmax share that contributes no value (gpt-oss; Xiao et al.
            2023).
    """

    scale: float
    window: int | None = None
    cap: float | None = None
    sinks: Tensor | None = None

    @property
    def plain(self) -> bool:
        """True if torch's own attention supports the settings."""
        return self.cap is None and self.sinks is None


def weigh(
    q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, visible_BTS: Tensor, weighing: Weighing, again: bool = False
) -> Tensor:
    """Compute attention with explicit scores in float32, one block of queries at a time, [B, H, T, D].

    Args:
        visible_BTS: whether a query sees a key; B may be 1. Each query sees at least one key.
        again: recompute the scores for the gradient instead of saving them. Inputs with several blocks always do.
    """
    rows, heads, length, _ = q_BHTD.shape
    step = max(1, SCORES // (rows * heads * k_BKSD.shape[2]))
    parts = []
    for start in range(0, length, step):
        part = slice(start, start + step)
        inputs = q_BHTD[:, :, part], k_BKSD, v_BKSD, visible_BTS[:, part], weighing
        twice = torch.is_grad_enabled() and (again or length > step)
        parts.append(checkpoint(_weigh, *inputs, use_reentrant=False) if twice else _weigh(*inputs))
    return torch.cat(parts, 2) if len(parts) > 1 else parts[0]


def _weigh(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, weighing: Weighing) -> Tensor:
    rows, heads, length, width = q.shape
    exact = torch.promote_types(q.dtype, torch.float32)
    grouped = q.to(exact).view(rows, k.shape[1], -1, length, width)  # query heads of the same key head together
    scores = grouped @ k.to(exact).transpose(-1, -2)[:, :, None] * weighing.scale  # [B, K, H/K, T, S]
    if weighing.cap is not None:
        scores = (scores / weighing.cap).tanh() * weighing.cap
    scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
    if weighing.sinks is not None:
        sinks = weighing.sinks.to(exact).view(1, k.shape[1], -1, 1, 1).expand(rows, -1, -1, length, 1)
        scores = torch.cat([scores, sinks], -1)
    shares = scores.softmax(-1)[..., : k.shape[2]]
    return (shares @ v.to(exact)[:, :, None]).reshape(rows, heads, length, v.shape[-1]).to(q.dtype)
