"""Token sampling by inverse CDF, with a uniform number per token from the row's own stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from marft.common.types import SamplingParams
from marft.models.devices import to_device
from marft.models.log_probs import shifted_exp_

BLOCK_SIZE = 64  # block size, in tokens, for the two-level CDF lookup


def sample_tokens(
    logits_BV: Tensor, uniforms_B: Tensor, greedy_B: Tensor | None, allowed_BV: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Sample a token per row.

    Args:
        logits_BV: logits divided by the sampling temperature, float32. The call modifies them in place.
        uniforms_B: in [0, 1).
        greedy_B: rows that take the most likely token; None if no row does.
        allowed_BV: tokens kept by top-p and top-k; None for all tokens.

    Returns:
        Token ids [B], and their log-probabilities [B] in the full distribution.
    """
    z, weights, total = shifted_exp_(logits_BV)
    ids = sample_from_weights(weights if allowed_BV is None else weights * allowed_BV, uniforms_B)
    if greedy_B is not None:
        ids = torch.where(greedy_B, z.argmax(-1), ids)
    return ids, z.gather(1, ids[:, None])[:, 0] - total.log()


def sample_from_weights(weights_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """Sample by inverse CDF: return the token whose cumulative weight range contains the uniform number, [B].

    The lookup has two levels, which avoids a cumulative sum over the vocabulary. A token with weight 0 is never drawn.
    """
    rows, vocabulary = weights_BV.shape
    padding = -vocabulary % BLOCK_SIZE
    padded = torch.nn.functional.pad(weights_BV, (0, padding)) if padding else weights_BV
    blocks = padded.view(rows, -1, BLOCK_SIZE)
    sums = blocks.sum(-1)
    block, remainder = _find_index(sums, uniforms_B[:, None].to(sums.dtype) * sums.sum(-1, keepdim=True))
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK_SIZE))[:, 0]
    index, _ = _find_index(inside, remainder)
    # for NaN weights, the index may be in the padding of the last block
    return (block * BLOCK_SIZE + index)[:, 0].clamp_max_(vocabulary - 1)


def _find_index(weights: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Find the first index with cumulative ``weights`` [B, N] above ``target`` [B, 1], and the remainder there.

    Rounding may make ``target`` reach the last cumulative sum. It is therefore clamped below that sum, so the result
    always has a weight above 0.
    """
    cumulative = weights.cumsum(-1)
    target = target.minimum(torch.nextafter(cumulative[:, -1:], torch.zeros_like(target)))
    index = torch.searchsorted(cumulative, target, right=True).clamp_max_(weights.shape[-1] - 1)  # NaN has no index
    before = cumulative.gather(1, index) - weights.gather(1, index)
    return index, (target - before).clamp_min_(0.0)


def top_k_top_p_mask(logits_BV: Tensor, options: Sequence[SamplingParams]) -> Tensor | None:
    """Return the mask of tokens kept by top-k and top-p, [B, V]; None if no row restricts its tokens."""
    if all(option.top_k == 0 and option.top_p >= 1.0 for option in options):
        return None
    top_k, top_p = top_k_top_p(options, logits_BV.shape[-1])
    return keep_likeliest(logits_BV, to_device(top_k, logits_BV.device), to_device(top_p, logits_BV.device))


def top_k_top_p(options: Sequence[SamplingParams], vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's top-k, with the vocabulary for all tokens, and top-p, [B] each."""
    counts = [min(option.top_k or vocabulary, vocabulary) for option in options]
    return np.array(counts, np.int64), np.array([option.top_p for option in options], np.float32)


def keep_likeliest(logits_BV: Tensor, top_k_B: Tensor, top_p_B: Tensor) -> Tensor:
    """Return the mask of the ``top_k`` likeliest tokens and of those in the ``top_p`` nucleus, [B, V]."""
    ordered, order = logits_BV.softmax(-1).sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered  # probability mass of the likelier tokens
    rank = torch.arange(logits_BV.shape[-1], device=logits_BV.device)
    keep = (rank < top_k_B[:, None]) & ((before < top_p_B[:, None]) | (rank == 0))
    return torch.zeros_like(keep).scatter_(1, order, keep)
