"""Log-probabilities and entropies for target tokens, in chunks: the full ``[tokens, vocabulary]`` tensor never exists.

With a frozen LM head, the derivative of a token's log-probability with respect to its hidden state is ``(W[y] - Σ_v p_v
W[v]) / τ``. It does not depend on the upstream gradient. So the forward computes it while the chunk's logits are
available, and the backward is a single multiplication. A trained head recomputes its chunks in the backward instead. If
the trained head has half precision, its gradient accumulates over the chunks in float32.

A half-precision head is multiplied in float32. Logits rounded to bfloat16 before the softmax have errors up to 0.1. The
derivative of rounded probabilities has its largest error where a token is nearly certain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad
from torch.utils.checkpoint import checkpoint

from marft.models.devices import half_product, on_host
from marft.models.linear_layers import EXACT
from marft.models.logit_shape import AS_THEY_ARE, LogitShape
from marft.models.masked import PackedMasks, masked, masked_

CHUNK_ELEMENTS = 2**22  # logits held at a time
# minimum rows per chunk, unless these rows would have more than LARGE_CHUNK logits
LEAST_CHUNK, LARGE_CHUNK = 256, 2**24
LEAST_ROWS = 16  # minimum rows of a chunk: with fewer rows, other kernels with other rounding run
FILLED_ROWS = 1024  # maximum rows of a chunk with fixed size
BLOCK = 8192  # rows of a half-precision head converted to float32 at a time, if no kernel supports mixed precision


class TokenScores(NamedTuple):
    """``log_probs`` and ``entropies``, both [T], at each token's sampling temperature."""

    log_probs: Tensor
    entropies: Tensor


def token_scores(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_T: Tensor,
    temperatures_T: Tensor | None,
    entropy_gradient: bool = False,
    filled: bool = False,
    shape: LogitShape = AS_THEY_ARE,
    masks: PackedMasks | None = None,
) -> TokenScores:
    """Score ``targets_T`` under ``softmax(shape(hidden · weightᵀ + bias) / temperature)``, over allowed tokens.

    Args:
        hidden_TD: hidden states at the positions that predict the targets.
        weight_VD: weights of the LM head.
        bias_V: bias of the LM head, or None.
        targets_T: target token ids.
        temperatures_T: temperature of each token; None if all are 1.
        entropy_gradient: whether the entropies need a gradient. If not, they are only a metric.
        filled: whether every chunk has the same size, so that a score does not depend on the number of targets.
        shape: transform of the logits.
        masks: allowed tokens of each target; None if all tokens are allowed.
    """
    count, rows = len(targets_T), _chunk_rows(weight_VD.shape[0])
    rows = min(rows, FILLED_ROWS) if filled else rows
    rest = count % rows
    if rest:
        spare = (rows if filled else min(rows, -(-rest // LEAST_ROWS) * LEAST_ROWS)) - rest
        hidden_TD, targets_T = pad(hidden_TD, (0, 0, 0, spare)), pad(targets_T, (0, spare))
        temperatures_T = None if temperatures_T is None else pad(temperatures_T, (0, spare), value=1.0)
        masks = masks and masks.padded(spare)
    trains_head = torch.is_grad_enabled() and (weight_VD.requires_grad or (bias_V is not None and bias_V.requires_grad))
    if not trains_head:
        log_probs, entropies = _FrozenHead.apply(  # type: ignore[no-untyped-call]
            hidden_TD, weight_VD, bias_V, targets_T, temperatures_T, entropy_gradient, rows, shape, masks
        )
        entropies = entropies if entropy_gradient else entropies.detach()
        return TokenScores(log_probs[:count], entropies[:count])
    if weight_VD.dtype not in EXACT:
        log_probs, entropies = _HalfHead.apply(  # type: ignore[no-untyped-call]
            hidden_TD, weight_VD, bias_V, targets_T, temperatures_T, rows, shape, masks
        )
        return TokenScores(log_probs[:count], (entropies if entropy_gradient else entropies.detach())[:count])
    chunks = [
        checkpoint(_score_chunk, h, weight_VD, bias_V, y, t, shape, some, use_reentrant=False)
        for h, y, t, some in _split(hidden_TD, targets_T, temperatures_T, masks, rows)
    ]
    log_probs, entropies = (torch.cat(parts)[:count] for parts in zip(*chunks, strict=True))
    return TokenScores(log_probs, entropies if entropy_gradient else entropies.detach())


def _chunk_rows(vocabulary: int) -> int:
    """Return the rows per chunk: for a large vocabulary, enough rows to amortize the weight reads.

    >>> [_chunk_rows(vocabulary) for vocabulary in (4096, 49_152, 151_936)]
    [1024, 256, 110]
    """
    return max(1, CHUNK_ELEMENTS // vocabulary, min(LEAST_CHUNK, LARGE_CHUNK // vocabulary))


def scaled_logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    temperatures: Tensor | None,
    shape: LogitShape = AS_THEY_ARE,
) -> Tensor:
    """Return logits divided by temperature, [T, V], in float32 or better."""
    return _tempered(shape(_logits(hidden, weight, bias)), temperatures)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.dtype in EXACT:
        return linear(hidden.to(weight.dtype), weight, bias)
    logits = _half_product(hidden.to(weight.dtype), weight.t())
    return logits if bias is None else logits.add_(bias)


def next_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperatures: Tensor | None, shape: LogitShape = AS_THEY_ARE
) -> Tensor:
    """Return :func:`scaled_logits` for few rows, with faster products on a CPU.

    The product is ``W hᵀ`` on a CPU, which reads the weights in memory order; the result is then stored by columns. Its
    rounding differs from :func:`scaled_logits`, so use it only for scores that are not compared bit by bit.
    """
    if not on_host(weight) or weight.dtype not in EXACT:
        return scaled_logits(hidden, weight, bias, temperatures, shape)
    logits = (weight @ hidden.to(weight.dtype).t()).t()
    return _tempered(shape(logits if bias is None else logits + bias), temperatures)


def _tempered(logits: Tensor, temperatures: Tensor | None) -> Tensor:
    return logits if temperatures is None else logits / temperatures[:, None].to(logits.dtype)


def exponentials_(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``(z, e^z, Σ e^z)`` for ``z`` = logits minus their maximum, [T, V], [T, V], [T]; ``logits`` becomes z.

    A token's log-probability is ``z − log Σ e^z``. The result equals ``log_softmax`` with fewer passes over memory.
    """
    z = logits.sub_(logits.amax(-1, keepdim=True))
    exponentials = z.exp()
    return z, exponentials, exponentials.sum(-1)


def _split(
    hidden: Tensor, targets: Tensor, temperatures: Tensor | None, masks: PackedMasks | None, rows: int
) -> Iterator[tuple[Tensor, Tensor, Tensor | None, PackedMasks | None]]:
    """Split the inputs into chunks."""
    for start in range(0, len(targets), rows):
        part = slice(start, start + rows)
        some = None if temperatures is None else temperatures[part]
        yield hidden[part], targets[part], some, masks and masks.part(part)


def _score_chunk(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperatures: Tensor | None,
    shape: LogitShape,
    masks: PackedMasks | None,
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies with autograd, bitwise equal to :class:`_FrozenHead`."""
    return _scored(masked(scaled_logits(hidden, weight, bias, temperatures, shape), masks), targets)


def _scored(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the target log-probabilities and the entropies, with autograd."""
    z = logits - logits.detach().amax(-1, keepdim=True)
    p = z.exp()
    total = p.sum(-1)
    chosen = z.gather(1, targets[:, None])[:, 0] - total.log()
    return chosen, total.log() - (p * z.masked_fill(p == 0.0, 0.0)).sum(-1) * total.reciprocal()


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
        shape: LogitShape,
        masks: PackedMasks | None,
    ) -> tuple[Tensor, Tensor]:
        needs_gradient = ctx.needs_input_grad[0]
        log_probs, entropies, slopes, entropy_slopes = [], [], [], []
        for h, y, temperature, some in _split(hidden, targets, temperatures, masks, rows):
            logits = scaled_logits(h, weight, bias, None, shape)
            bend = shape.slope(logits) if needs_gradient else 1.0
            z, p, total = exponentials_(masked_(_tempered(logits, temperature), some))
            log_total, share = total.log(), total.reciprocal()[:, None]
            log_probs.append(z.gather(1, y[:, None])[:, 0] - log_total)
            scale = share if temperature is None else share / temperature[:, None].to(p.dtype)
            if needs_gradient:
                at, mine = y[:, None], p.gather(1, y[:, None])
                p.scatter_(1, at, mine - total[:, None])  # p − Σp·[v = y]: avoids cancellation
                slopes.append(-scale * _times(_bent(p, bend), weight))
                p.scatter_(1, at, mine)
            z.mul_(p)
            weighted = _sum_of_those_that_can_be(z)
            entropy = log_total - weighted * share[:, 0]
            entropies.append(entropy)
            if needs_gradient and entropy_gradient:
                z.addcmul_(p, (entropy - log_total)[:, None])  # e^z (z − log Σ e^z + H)
                entropy_slopes.append(-scale * _times(_bent(z, bend), weight))
        if needs_gradient:
            ctx.save_for_backward(torch.cat(slopes), *([torch.cat(entropy_slopes)] if entropy_gradient else []))
            ctx.dtype = hidden.dtype
        return torch.cat(log_probs), torch.cat(entropies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, entropy_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        slopes, *entropy_slopes = ctx.saved_tensors
        out = grad[:, None] * slopes
        if entropy_slopes and entropy_grad is not None:
            out = out.addcmul(entropy_grad[:, None], entropy_slopes[0])
        return out.to(ctx.dtype), None, None, None, None, None, None, None, None


class _HalfHead(torch.autograd.Function):
    """Scores under a trained half-precision head."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperatures: Tensor | None,
        rows: int,
        shape: LogitShape,
        masks: PackedMasks | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, bias, targets, temperatures)
        ctx.rows, ctx.shape, ctx.masks = rows, shape, masks
        chunks = [
            _score_chunk(h, weight, bias, y, t, shape, some)
            for h, y, t, some in _split(hidden, targets, temperatures, masks, rows)
        ]
        log_probs, entropies = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        return log_probs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, temperatures = ctx.saved_tensors
        of_hidden = []
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        of_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        chunks = _split(hidden, targets, temperatures, ctx.masks, ctx.rows)
        for (h, y, temperature, some), *grads in zip(
            chunks, grad.split(ctx.rows), entropy_grad.split(ctx.rows), strict=True
        ):
            logits = _logits(h, weight, bias).requires_grad_()
            with torch.enable_grad():
                scores = _scored(masked(_tempered(ctx.shape(logits), temperature), some), y)
            (slope,) = torch.autograd.grad(scores, logits, grads)
            of_hidden.append(_times(slope, weight))
            of_weight += _times(slope.t(), h.to(weight.dtype))
            if of_bias is not None:
                of_bias += slope.sum(0)
        return (
            torch.cat(of_hidden).to(hidden.dtype), of_weight.to(weight.dtype),
            None if bias is None or of_bias is None else of_bias.to(bias.dtype), *[None] * 5,
        )  # fmt: skip


def _sum_of_those_that_can_be(z: Tensor) -> Tensor:
    """Sum ``z e^z`` per row. For impossible tokens, 0 · −∞ counts as 0, also in ``z``."""
    if not on_host(z):  # a check would synchronize with the device
        return z.nan_to_num_(0.0).sum(-1)
    weighted = z.sum(-1)
    return z.nan_to_num_(0.0).sum(-1) if weighted.isnan().any() else weighted


def _bent(p: Tensor, bend: Tensor | float) -> Tensor:
    """Apply the derivative of the logit transform: from logits to head products."""
    return p if isinstance(bend, float) and bend == 1.0 else p * bend


def _times(p: Tensor, weight: Tensor) -> Tensor:
    """Multiply ``p`` [T, V] (float32 or better) by ``weight`` [V, D], in the precision of ``p``."""
    if weight.dtype == p.dtype:
        return p @ weight
    if on_host(weight):
        return _half_product(p, weight)
    high, rest = halves(p, weight.dtype)
    return _half_product(high, weight).add_(_half_product(rest, weight))


def halves(p: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Split ``p`` into a sum of two half-precision tensors: rounded value and remainder. 16 bits are kept."""
    high = p.to(dtype)
    return high, (p - high).to(dtype)


def _half_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply ``a`` [T, K] by half-precision ``b`` [K, N] with float32 products and sums, [T, N]. No gradient."""
    if not on_host(b):
        return half_product(a, b)
    out = torch.zeros(len(a), b.shape[1], dtype=torch.float32, device=b.device)
    if b.shape[1] > b.shape[0]:  # the long dimension is the vocabulary
        for start in range(0, b.shape[1], BLOCK):
            out[:, start : start + BLOCK] = a.float() @ b[:, start : start + BLOCK].float()
    else:
        for start in range(0, b.shape[0], BLOCK):
            out += a[:, start : start + BLOCK].float() @ b[start : start + BLOCK].float()
    return out
