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

from marft.models.devices import half_matmul, is_on_cpu
from marft.models.linear_layers import EXACT_DTYPES
from marft.models.logit_transform import IDENTITY, LogitTransform
from marft.models.token_masks import PackedMasks, apply_masks, apply_masks_

CHUNK_ELEMENTS = 2**22  # logits held at a time
# minimum rows per chunk, unless these rows would have more than MAX_CHUNK_LOGITS logits
MIN_CHUNK_ROWS, MAX_CHUNK_LOGITS = 256, 2**24
MIN_ROWS = 16  # minimum rows of a chunk: with fewer rows, other kernels with other rounding run
FIXED_CHUNK_ROWS = 1024  # maximum rows of a chunk with fixed size
BLOCK_ROWS = 8192  # rows of a half-precision head converted to float32 at a time, if no kernel supports mixed precision


class TokenScores(NamedTuple):
    """``log_probs`` and ``entropies``, both [T], at each token's sampling temperature."""

    log_probs: Tensor
    entropies: Tensor


def score_tokens(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_T: Tensor,
    temperatures_T: Tensor | None,
    entropy_gradient: bool = False,
    fixed_size: bool = False,
    transform: LogitTransform = IDENTITY,
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
        fixed_size: whether every chunk has the same size, so that a score does not depend on the number of targets.
        transform: transform of the logits.
        masks: allowed tokens of each target; None if all tokens are allowed.
    """
    count, rows = len(targets_T), _chunk_rows(weight_VD.shape[0])
    rows = min(rows, FIXED_CHUNK_ROWS) if fixed_size else rows
    remainder = count % rows
    if remainder:
        padding = (rows if fixed_size else min(rows, -(-remainder // MIN_ROWS) * MIN_ROWS)) - remainder
        hidden_TD, targets_T = pad(hidden_TD, (0, 0, 0, padding)), pad(targets_T, (0, padding))
        temperatures_T = None if temperatures_T is None else pad(temperatures_T, (0, padding), value=1.0)
        masks = masks and masks.pad(padding)
    trains_head = torch.is_grad_enabled() and (weight_VD.requires_grad or (bias_V is not None and bias_V.requires_grad))
    if not trains_head:
        log_probs, entropies = _FrozenHead.apply(  # type: ignore[no-untyped-call]
            hidden_TD, weight_VD, bias_V, targets_T, temperatures_T, entropy_gradient, rows, transform, masks
        )
        entropies = entropies if entropy_gradient else entropies.detach()
        return TokenScores(log_probs[:count], entropies[:count])
    if weight_VD.dtype not in EXACT_DTYPES:
        log_probs, entropies = _HalfHead.apply(  # type: ignore[no-untyped-call]
            hidden_TD, weight_VD, bias_V, targets_T, temperatures_T, rows, transform, masks
        )
        return TokenScores(log_probs[:count], (entropies if entropy_gradient else entropies.detach())[:count])
    chunks = [
        checkpoint(_score_chunk, h, weight_VD, bias_V, y, t, transform, chunk_masks, use_reentrant=False)
        for h, y, t, chunk_masks in _split_chunks(hidden_TD, targets_T, temperatures_T, masks, rows)
    ]
    log_probs, entropies = (torch.cat(parts)[:count] for parts in zip(*chunks, strict=True))
    return TokenScores(log_probs, entropies if entropy_gradient else entropies.detach())


def _chunk_rows(vocabulary: int) -> int:
    """Return the rows per chunk: for a large vocabulary, enough rows to amortize the weight reads.

    >>> [_chunk_rows(vocabulary) for vocabulary in (4096, 49_152, 151_936)]
    [1024, 256, 110]
    """
    return max(1, CHUNK_ELEMENTS // vocabulary, min(MIN_CHUNK_ROWS, MAX_CHUNK_LOGITS // vocabulary))


def scaled_logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    temperatures: Tensor | None,
    transform: LogitTransform = IDENTITY,
) -> Tensor:
    """Return logits divided by temperature, [T, V], in float32 or better."""
    return _apply_temperature(transform(_head_logits(hidden, weight, bias)), temperatures)


def _head_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.dtype in EXACT_DTYPES:
        return linear(hidden.to(weight.dtype), weight, bias)
    logits = _half_matmul(hidden.to(weight.dtype), weight.t())
    return logits if bias is None else logits.add_(bias)


def next_logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    temperatures: Tensor | None,
    transform: LogitTransform = IDENTITY,
) -> Tensor:
    """Return :func:`scaled_logits` for few rows, with faster products on a CPU.

    The product is ``W hᵀ`` on a CPU, which reads the weights in memory order; the result is then stored by columns. Its
    rounding differs from :func:`scaled_logits`, so use it only for scores that are not compared bit by bit.
    """
    if not is_on_cpu(weight) or weight.dtype not in EXACT_DTYPES:
        return scaled_logits(hidden, weight, bias, temperatures, transform)
    logits = (weight @ hidden.to(weight.dtype).t()).t()
    return _apply_temperature(transform(logits if bias is None else logits + bias), temperatures)


def _apply_temperature(logits: Tensor, temperatures: Tensor | None) -> Tensor:
    return logits if temperatures is None else logits / temperatures[:, None].to(logits.dtype)


def shifted_exp_(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``(z, e^z, Σ e^z)`` for ``z`` = logits minus their maximum, [T, V], [T, V], [T]; ``logits`` becomes z.

    A token's log-probability is ``z − log Σ e^z``. The result equals ``log_softmax`` with fewer passes over memory.
    """
    z = logits.sub_(logits.amax(-1, keepdim=True))
    exp_z = z.exp()
    return z, exp_z, exp_z.sum(-1)


def _split_chunks(
    hidden: Tensor, targets: Tensor, temperatures: Tensor | None, masks: PackedMasks | None, rows: int
) -> Iterator[tuple[Tensor, Tensor, Tensor | None, PackedMasks | None]]:
    """Split the inputs into chunks."""
    for start in range(0, len(targets), rows):
        part = slice(start, start + rows)
        chunk_temperatures = None if temperatures is None else temperatures[part]
        yield hidden[part], targets[part], chunk_temperatures, masks and masks.select(part)


def _score_chunk(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperatures: Tensor | None,
    transform: LogitTransform,
    masks: PackedMasks | None,
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies with autograd, bitwise equal to :class:`_FrozenHead`."""
    return _score_logits(apply_masks(scaled_logits(hidden, weight, bias, temperatures, transform), masks), targets)


def _score_logits(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
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
        transform: LogitTransform,
        masks: PackedMasks | None,
    ) -> tuple[Tensor, Tensor]:
        needs_gradient = ctx.needs_input_grad[0]
        log_probs, entropies, hidden_grads, entropy_grads = [], [], [], []
        for h, y, temperature, chunk_masks in _split_chunks(hidden, targets, temperatures, masks, rows):
            logits = scaled_logits(h, weight, bias, None, transform)
            transform_grad = transform.gradient(logits) if needs_gradient else 1.0
            z, p, total = shifted_exp_(apply_masks_(_apply_temperature(logits, temperature), chunk_masks))
            log_total, inverse_total = total.log(), total.reciprocal()[:, None]
            log_probs.append(z.gather(1, y[:, None])[:, 0] - log_total)
            scale = inverse_total if temperature is None else inverse_total / temperature[:, None].to(p.dtype)
            if needs_gradient:
                at, target_weights = y[:, None], p.gather(1, y[:, None])
                p.scatter_(1, at, target_weights - total[:, None])  # p − Σp·[v = y]: avoids cancellation
                hidden_grads.append(-scale * _matmul(_apply_transform_grad(p, transform_grad), weight))
                p.scatter_(1, at, target_weights)
            z.mul_(p)
            weighted = _sum_finite(z)
            entropy = log_total - weighted * inverse_total[:, 0]
            entropies.append(entropy)
            if needs_gradient and entropy_gradient:
                z.addcmul_(p, (entropy - log_total)[:, None])  # e^z (z − log Σ e^z + H)
                entropy_grads.append(-scale * _matmul(_apply_transform_grad(z, transform_grad), weight))
        if needs_gradient:
            ctx.save_for_backward(torch.cat(hidden_grads), *([torch.cat(entropy_grads)] if entropy_gradient else []))
            ctx.dtype = hidden.dtype
        return torch.cat(log_probs), torch.cat(entropies)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, entropy_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_grads, *entropy_grads = ctx.saved_tensors
        out = grad[:, None] * hidden_grads
        if entropy_grads and entropy_grad is not None:
            out = out.addcmul(entropy_grad[:, None], entropy_grads[0])
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
        transform: LogitTransform,
        masks: PackedMasks | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, bias, targets, temperatures)
        ctx.rows, ctx.shape, ctx.masks = rows, transform, masks
        chunks = [
            _score_chunk(h, weight, bias, y, t, transform, chunk_masks)
            for h, y, t, chunk_masks in _split_chunks(hidden, targets, temperatures, masks, rows)
        ]
        log_probs, entropies = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        return log_probs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, temperatures = ctx.saved_tensors
        hidden_grads = []
        weight_grad = torch.zeros_like(weight, dtype=torch.float32)
        bias_grad = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        chunks = _split_chunks(hidden, targets, temperatures, ctx.masks, ctx.rows)
        for (h, y, temperature, chunk_masks), *grads in zip(
            chunks, grad.split(ctx.rows), entropy_grad.split(ctx.rows), strict=True
        ):
            logits = _head_logits(h, weight, bias).requires_grad_()
            with torch.enable_grad():
                scores = _score_logits(apply_masks(_apply_temperature(ctx.shape(logits), temperature), chunk_masks), y)
            (logit_grads,) = torch.autograd.grad(scores, logits, grads)
            hidden_grads.append(_matmul(logit_grads, weight))
            weight_grad += _matmul(logit_grads.t(), h.to(weight.dtype))
            if bias_grad is not None:
                bias_grad += logit_grads.sum(0)
        return (
            torch.cat(hidden_grads).to(hidden.dtype),
            weight_grad.to(weight.dtype),
            None if bias is None or bias_grad is None else bias_grad.to(bias.dtype),
            *[None] * 5,
        )


def _sum_finite(z: Tensor) -> Tensor:
    """Sum ``z e^z`` per row. For impossible tokens, 0 · −∞ counts as 0, also in ``z``."""
    if not is_on_cpu(z):  # a check would synchronize with the device
        return z.nan_to_num_(0.0).sum(-1)
    weighted = z.sum(-1)
    return z.nan_to_num_(0.0).sum(-1) if weighted.isnan().any() else weighted


def _apply_transform_grad(p: Tensor, transform_grad: Tensor | float) -> Tensor:
    """Apply the derivative of the logit transform: from logits to head products."""
    return p if isinstance(transform_grad, float) and transform_grad == 1.0 else p * transform_grad


def _matmul(p: Tensor, weight: Tensor) -> Tensor:
    """Multiply ``p`` [T, V] (float32 or better) by ``weight`` [V, D], in the precision of ``p``."""
    if weight.dtype == p.dtype:
        return p @ weight
    if is_on_cpu(weight):
        return _half_matmul(p, weight)
    high, remainder = split_precision(p, weight.dtype)
    return _half_matmul(high, weight).add_(_half_matmul(remainder, weight))


def split_precision(p: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Split ``p`` into a sum of two half-precision tensors: rounded value and remainder. 16 bits are kept."""
    high = p.to(dtype)
    return high, (p - high).to(dtype)


def _half_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply ``a`` [T, K] by half-precision ``b`` [K, N] with float32 products and sums, [T, N]. No gradient."""
    if not is_on_cpu(b):
        return half_matmul(a, b)
    out = torch.zeros(len(a), b.shape[1], dtype=torch.float32, device=b.device)
    if b.shape[1] > b.shape[0]:  # the long dimension is the vocabulary
        for start in range(0, b.shape[1], BLOCK_ROWS):
            out[:, start : start + BLOCK_ROWS] = a.float() @ b[:, start : start + BLOCK_ROWS].float()
    else:
        for start in range(0, b.shape[0], BLOCK_ROWS):
            out += a[:, start : start + BLOCK_ROWS].float() @ b[start : start + BLOCK_ROWS].float()
    return out
