"""Drawing tokens: one uniform number a token, taken from the row's own stream, through the inverse distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from marft.types import Sampling


def draw(logits_BV: Tensor, uniforms_B: Tensor, greedy_B: Tensor, allowed_BV: Tensor | None) -> tuple[Tensor, Tensor]:
    """Draw one token a row.

    Args:
        logits_BV: over the sampling temperature, float32.
        uniforms_B: in [0, 1).
        greedy_B: rows that take the most likely token.
        allowed_BV: tokens that top-p and top-k leave, or None for all.

    Returns:
        Token ids [B], and their log-probabilities [B] in the whole distribution.
    """
    log_p = logits_BV.log_softmax(-1)
    p = log_p.exp() if allowed_BV is None else log_p.exp() * allowed_BV
    cumulative = p.cumsum(-1)
    wanted = uniforms_B[:, None].to(p.dtype) * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, wanted, right=True)[:, 0]
    best = log_p.argmax(-1)
    beyond = drawn >= p.shape[-1]  # u · total rounded up to the total
    ids = torch.where(greedy_B | beyond, best, drawn.clamp_max(p.shape[-1] - 1))
    return ids, log_p.gather(1, ids[:, None])[:, 0]


def allowed_tokens(logits_BV: Tensor, options: list[Sampling]) -> Tensor | None:
    """Mask of the tokens that each row's top-k and top-p leave; None when no row restricts anything."""
    if all(option.top_k == 0 and option.top_p >= 1.0 for option in options):
        return None
    vocabulary = logits_BV.shape[-1]
    top_k = torch.tensor([option.top_k or vocabulary for option in options], device=logits_BV.device)
    top_p = torch.tensor([option.top_p for option in options], device=logits_BV.device)
    ordered, order = logits_BV.softmax(-1).sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered  # mass of the likelier tokens
    rank = torch.arange(vocabulary, device=logits_BV.device)
    keep = (rank < top_k[:, None]) & ((before < top_p[:, None]) | (rank == 0))
    return torch.zeros_like(keep).scatter_(1, order, keep)
