"""Drawing tokens: one uniform number a token, taken from the row's own stream, through the inverse distribution."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from marft.common.types import Sampling
from marft.models.devices import sent
from marft.models.log_probs import exponentials_

BLOCK = 64  # tokens summed at once when the inverse distribution is looked up


def draw(
    logits_BV: Tensor, uniforms_B: Tensor, greedy_B: Tensor | None, allowed_BV: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Draw one token a row.

    Args:
        logits_BV: over the sampling temperature, float32; they are used up.
        uniforms_B: in [0, 1).
        greedy_B: rows that take the most likely token; None when no row does.
        allowed_BV: tokens that top-p and top-k leave, or None for all.

    Returns:
        Token ids [B], and their log-probabilities [B] in the whole distribution.
    """
    z, weights, total = exponentials_(logits_BV)
    ids = inverse(weights if allowed_BV is None else weights * allowed_BV, uniforms_B)
    if greedy_B is not None:
        ids = torch.where(greedy_B, z.argmax(-1), ids)
    return ids, z.gather(1, ids[:, None])[:, 0] - total.log()


def inverse(weights_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """The token whose share of each row's cumulative weight holds the uniform number, [B].

    Looked up in two levels, so that no cumulative sum over the vocabulary is made. A token of weight 0 is never drawn.
    """
    rows, vocabulary = weights_BV.shape
    spare = -vocabulary % BLOCK
    padded = torch.nn.functional.pad(weights_BV, (0, spare)) if spare else weights_BV
    blocks = padded.view(rows, -1, BLOCK)
    sums = blocks.sum(-1)
    block, rest = _find(sums, uniforms_B[:, None].to(sums.dtype) * sums.sum(-1, keepdim=True))
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0]
    index, _ = _find(inside, rest)
    return (block * BLOCK + index)[:, 0].clamp_max_(vocabulary - 1)  # where numbers are none, the last block's padding


def _find(weights: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Where the cumulative ``weights`` [B, N] first exceed ``wanted`` [B, 1], and what is left of it there.

    ``wanted`` is kept below the last cumulative sum, which rounding may make it reach: then something of weight
    above 0 is always found.
    """
    cumulative = weights.cumsum(-1)
    wanted = wanted.minimum(torch.nextafter(cumulative[:, -1:], torch.zeros_like(wanted)))
    index = torch.searchsorted(cumulative, wanted, right=True).clamp_max_(weights.shape[-1] - 1)  # NaN has no index
    before = cumulative.gather(1, index) - weights.gather(1, index)
    return index, (wanted - before).clamp_min_(0.0)


def allowed_tokens(logits_BV: Tensor, options: list[Sampling]) -> Tensor | None:
    """Mask of the tokens that each row's top-k and top-p leave; None when no row restricts anything."""
    if all(option.top_k == 0 and option.top_p >= 1.0 for option in options):
        return None
    vocabulary = logits_BV.shape[-1]
    counts = [min(option.top_k or vocabulary, vocabulary) for option in options]
    top_k = sent(np.array(counts, np.int64), logits_BV.device)
    top_p = sent(np.array([option.top_p for option in options], np.float32), logits_BV.device)
    ordered, order = logits_BV.softmax(-1).sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered  # mass of the likelier tokens
    rank = torch.arange(vocabulary, device=logits_BV.device)
    keep = (rank < top_k[:, None]) & ((before < top_p[:, None]) | (rank == 0))
    return torch.zeros_like(keep).scatter_(1, order, keep)
