"""Attention settings for a layer: scale, window, soft cap and sinks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

MAX_SCORES = 2**24  # maximum number of scores held at once


@dataclass(frozen=True, slots=True, eq=False)
class AttentionSpec:
    """Attention settings: scores ``scale · q kᵀ``, soft cap, mask, then softmax with an optional sink per head.

    Args:
        window: number of visible tokens, including the token itself; None for all.
        softcap: soft cap, ``softcap · tanh(score / softcap)`` (Gemma 2: Riviere et al. 2024).
        sinks: [H] additional score per head, with a softmax share that contributes no value (gpt-oss; Xiao et al.
            2023).
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def is_standard(self) -> bool:
        """True if torch's own attention supports the settings."""
        return self.softcap is None and self.sinks is None


def eager_attention(
    q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, visible_BTS: Tensor, spec: AttentionSpec, recompute: bool = False
) -> Tensor:
    """Compute attention with explicit scores in float32, one block of queries at a time, [B, H, T, D].

    Args:
        visible_BTS: whether a query sees a key; B may be 1. Each query sees at least one key.
        recompute: recompute the scores for the gradient instead of saving them. Inputs with several blocks always do.
    """
    rows, heads, length, _ = q_BHTD.shape
    step = max(1, MAX_SCORES // (rows * heads * k_BKSD.shape[2]))
    parts = []
    for start in range(0, length, step):
        part = slice(start, start + step)
        inputs = q_BHTD[:, :, part], k_BKSD, v_BKSD, visible_BTS[:, part], spec
        recompute_part = torch.is_grad_enabled() and (recompute or length > step)
        parts.append(
            checkpoint(_attention_block, *inputs, use_reentrant=False) if recompute_part else _attention_block(*inputs)
        )
    return torch.cat(parts, 2) if len(parts) > 1 else parts[0]


def _attention_block(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, spec: AttentionSpec) -> Tensor:
    rows, heads, length, width = q.shape
    exact = torch.promote_types(q.dtype, torch.float32)
    grouped = q.to(exact).view(rows, k.shape[1], -1, length, width)  # query heads of the same key head together
    scores = grouped @ k.to(exact).transpose(-1, -2)[:, :, None] * spec.scale  # [B, K, H/K, T, S]
    if spec.softcap is not None:
        scores = (scores / spec.softcap).tanh() * spec.softcap
    scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
    if spec.sinks is not None:
        sinks = spec.sinks.to(exact).view(1, k.shape[1], -1, 1, 1).expand(rows, -1, -1, length, 1)
        scores = torch.cat([scores, sinks], -1)
    probabilities = scores.softmax(-1)[..., : k.shape[2]]
    return (probabilities @ v.to(exact)[:, :, None]).reshape(rows, heads, length, v.shape[-1]).to(q.dtype)
