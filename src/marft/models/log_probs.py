"""Log-probabilities and entropies of chosen tokens, in chunks: ``[tokens, vocabulary]`` never exists whole.

With a frozen LM head the derivative of a token's log-probability with respect to its hidden state,
``(W[y] - Σ_v p_v W[v]) / τ``, needs nothing from upstream, so the forward computes it while the chunk's logits are at
hand and the backward is one multiplication. A trained head recomputes its chunks in the backward instead.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    temperatures_T: Tensor | None,
    entropy_gradient: bool = False,
) -> TokenScores:
    """Score ``targets_T`` under ``softmax((hidden · weightᵀ + bias) / temperature)``.

    Args:
        hidden_TD: hidden states at the positions that predict the targets.
        temperatures_T: of each token; None when all are 1.
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
        for h, y, t in _split(hidden_TD, targets_T, temperatures_T, rows)
    ]
    log_probs, entropies = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return TokenScores(log_probs, entropies if entropy_gradient else entropies.detach())


def scaled_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperatures: Tensor | None) -> Tensor:
    """Logits over temperature, in float32 or better: the one place where the sampler and the learner make them."""
    logits = torch.nn.functional.linear(hidden.to(weight.dtype), weight, bias)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if temperatures is None else logits / temperatures[:, None].to(logits.dtype)


def exponentials_(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``(z, e^z, Σ e^z)`` for ``z`` = logits minus their maximum, [T, V], [T, V], [T]. ``logits`` becomes z.

    A token's log-probability is ``z − log Σ e^z``: what ``log_softmax`` computes, without its passes over memory.
    """
    z = logits.sub_(logits.amax(-1, keepdim=True))
    exponentials = z.exp()
    return z, exponentials, exponentials.sum(-1)


def _split(
    hidden: Tensor, targets: Tensor, temperatures: Tensor | None, rows: int
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    for start in range(0, len(targets), rows):
        part = slice(start, start + rows)
        yield hidden[part], targets[part], None if temperatures is None else temperatures[part]


def _score_chunk(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperatures: Tensor | None
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
        temperatures: Tensor | None,
        entropy_gradient: bool,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        needs_gradient = ctx.needs_input_grad[0]
        log_probs, entropies, slopes, entropy_slopes = [], [], [], []
        for h, y, temperature in _split(hidden, targets, temperatures, rows):
            z, p, total = exponentials_(scaled_logits(h, weight, bias, temperature))
            log_total, share = total.log(), total.reciprocal()[:, None]
            log_probs.append(z.gather(1, y[:, None])[:, 0] - log_total)
            scale = share if temperature is None else share / temperature[:, None].to(p.dtype)
            if needs_gradient:
                chosen = weight[y].to(p.dtype)
                slopes.append(
                    (chosen if temperature is None else chosen / temperature[:, None]) - scale * _times(p, weight)
                )
            z.mul_(p)
            weighted = z.sum(-1)
            if weighted.isnan().any():  # tokens that cannot be: 0 · −∞ counts as 0
                weighted = z.nan_to_num_(0.0).sum(-1)
            entropy = log_total - weighted * share[:, 0]
            entropies.append(entropy)
            if needs_gradient and entropy_gradient:
                z.addcmul_(p, (entropy - log_total)[:, None])  # e^z (z − log Σ e^z + H)
                entropy_slopes.append(-scale * _times(z, weight))
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
