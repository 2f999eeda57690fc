"""Log-probabilities and entropies of chosen tokens, in chunks: ``[tokens, vocabulary]`` never exists whole.

With a frozen LM head the derivative of a token's log-probability with respect to its hidden state,
``(W[y] - Σ_v p_v W[v]) / τ``, needs nothing from upstream, so the forward computes it while the chunk's logits are at
hand and the backward is one multiplication. A trained head recomputes its chunks in the backward instead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 2**22  # logits held at a time


class TokenScores(NamedTuple):
    """``log_probs`` and ``entropies``, both [T], at each token's own sampling temperature."""

    log_probs: Tensor
    entropies: Tensor


def token_scores(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_T: Tensor,
    temperatures_T: Tensor,
    entropy_gradient: bool = False,
) -> TokenScores:
    """Score ``targets_T`` under ``softmax((hidden · weightᵀ + bias) / temperature)``.

    Args:
        hidden_TD: hidden states at the positions that predict the targets.
        entropy_gradient: whether the entropies need a gradient; without it they are a metric.
    """
    rows = max(1, CHUNK_ELEMENTS // weight_VD.shape[0])
    trains_head = torch.is_grad_enabled() and (weight_VD.requires_grad or (bias_V is not None and bias_V.requires_grad))
    if not trains_head:
        log_probs, entropies = _FrozenHead.apply(  # type: ignore[no-untyped-call]
            hidden_TD, weight_VD, bias_V, targets_T, temperatures_T, entropy_gradient, rows
        )
        return TokenScores(log_probs, entropies if entropy_gradient else entropies.detach())
    chunks = [
        checkpoint(_score_chunk, h, weight_VD, bias_V, y, t, use_reentrant=False)
        for h, y, t in zip(hidden_TD.split(rows), targets_T.split(rows), temperatures_T.split(rows), strict=True)
    ]
    log_probs, entropies = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return TokenScores(log_probs, entropies if entropy_gradient else entropies.detach())


def scaled_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperatures: Tensor) -> Tensor:
    """Logits over temperature, in float32 or better: the one place where the sampler and the learner make them."""
    logits = torch.nn.functional.linear(hidden.to(weight.dtype), weight, bias)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits / temperatures[:, None].to(logits.dtype)


def _score_chunk(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperatures: Tensor
) -> tuple[Tensor, Tensor]:
    log_p = scaled_logits(hidden, weight, bias, temperatures).log_softmax(-1)
    chosen = log_p.gather(1, targets[:, None])[:, 0]
    return chosen, -(log_p.exp() * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(-1)


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperatures: Tensor,
        entropy_gradient: bool,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        needs_gradient = ctx.needs_input_grad[0]
        log_probs, entropies, slopes, entropy_slopes = [], [], [], []
        pieces = zip(hidden.split(rows), targets.split(rows), temperatures.split(rows), strict=True)
        for h, y, temperature in pieces:
            log_p = scaled_logits(h, weight, bias, temperature).log_softmax(-1)
            log_probs.append(log_p.gather(1, y[:, None])[:, 0])
            p = log_p.exp()
            plogp = log_p.clamp_min_(torch.finfo(log_p.dtype).min).mul_(p)
            entropy = -plogp.sum(-1)
            entropies.append(entropy)
            if needs_gradient:
                scale = temperature[:, None].to(p.dtype)
                slopes.append((weight[y].to(p.dtype) - _times(p, weight)) / scale)
                if entropy_gradient:
                    plogp.addcmul_(p, entropy[:, None])
                    entropy_slopes.append(-_times(plogp, weight) / scale)
        if needs_gradient:
            ctx.save_for_backward(torch.cat(slopes), *([torch.cat(entropy_slopes)] if entropy_gradient else []))
            ctx.dtype = hidden.dtype
        return torch.cat(log_probs), torch.cat(entropies)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, entropy_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        slopes, *entropy_slopes = ctx.saved_tensors
        out = grad[:, None] * slopes
        if entropy_slopes and entropy_grad is not None:
            out = out.addcmul(entropy_grad[:, None], entropy_slopes[0])
        return out.to(ctx.dtype), None, None, None, None, None, None


def _times(p: Tensor, weight: Tensor) -> Tensor:
    return (p.to(weight.dtype) @ weight).to(p.dtype)
