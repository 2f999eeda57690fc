"""Log-probabilities and entropies for target tokens, in chunks: the full ``[tokens, vocabulary]`` tensor never exists.

With a frozen LM head, the derivative of a token's log-probability with respect to its hidden state is ``(W[y] - Σ_v p_v
W[v]) / τ``. It does not depend on the upstream gradient. So the forward computes it while the chunk's logits are
available, and the backward is a single multiplication. A trained head recomputes its chunks in the backward instead. If
the trained head has half precision, its gradient accumulates over the chunks in float32.

A half-precision head is multiplied in float32. Logits rounded to bfloat16 before the softmax have errors up to 0.1. The
derivative of rounded probabilities has its largest error where a token is nearly certain.

Some models transform their logits after the head (:class:`LogitTransform`). A grammar masks the logits of disallowed
tokens with minus infinity (:class:`PackedMasks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig

from marft.common.token_data import GrammarMasks
from marft.models.cpu_products import PackedWeights, multiply_columns, multiply_rows
from marft.models.devices import EXACT_DTYPES, AutogradContext, half_matmul, is_on_cpu, to_device

CHUNK_ELEMENTS = 2**22  # logits held at a time
# minimum rows per chunk, unless these rows would have more than MAX_CHUNK_LOGITS logits
MIN_CHUNK_ROWS, MAX_CHUNK_LOGITS = 256, 2**24
MIN_ROWS = 16  # minimum rows of a chunk: with fewer rows, other kernels with other rounding run
FIXED_CHUNK_ROWS = 1024  # maximum rows of a chunk with fixed size
BLOCK_ROWS = 8192  # rows of a half-precision head converted to float32 at a time, if no kernel supports mixed precision


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """Logit transform ``x → softcap · tanh(scale · x / softcap)``; without a soft cap ``scale · x``."""

    scale: float = 1.0
    softcap: float | None = None

    @staticmethod
    def from_config(config: PreTrainedConfig) -> LogitTransform:
        """Read the transform from a model's configuration: Granite divides, Cohere multiplies, Gemma caps."""
        factor, divisor = (getattr(config, name, None) or 1.0 for name in ("logit_scale", "logits_scaling"))
        return LogitTransform(float(factor) / float(divisor), getattr(config, "final_logit_softcapping", None))

    @property
    def is_identity(self) -> bool:
        """True for the identity transform."""
        return self.scale == 1.0 and self.softcap is None

    def __call__(self, head_outputs: Tensor) -> Tensor:
        """Convert head products to logits."""
        if self.is_identity:
            return head_outputs
        scaled = head_outputs * self.scale
        return scaled if self.softcap is None else (scaled / self.softcap).tanh() * self.softcap

    def gradient(self, logits: Tensor) -> Tensor | float:
        """Return the derivative of the logits with respect to the head products, given the logits."""
        return self.scale if self.softcap is None else (1 - (logits / self.softcap).square()) * self.scale


IDENTITY = LogitTransform()


class OutputHead(NamedTuple):
    """Output layer of a model: a linear layer and the transform of its logits."""

    weight: Tensor  # [V, D]
    bias: Tensor | None = None  # [V]
    transform: LogitTransform = IDENTITY


class TokenScores(NamedTuple):
    """``log_probs`` and ``entropies``, both [T], at each token's sampling temperature."""

    log_probs: Tensor
    entropies: Tensor


class _Targets(NamedTuple):
    """Tokens to score, with the temperatures and masks under which they were sampled."""

    ids: Tensor  # [T]
    temperatures: Tensor | None  # [T]
    masks: PackedMasks | None

    def pad(self, padding: int) -> _Targets:
        """Append ``padding`` tokens, at temperature 1 and without masks."""
        temperatures = None if self.temperatures is None else pad(self.temperatures, (0, padding), value=1.0)
        return _Targets(pad(self.ids, (0, padding)), temperatures, self.masks and self.masks.pad(padding))

    def chunks(self, hidden_TD: Tensor, rows: int) -> Iterator[tuple[Tensor, _Targets]]:
        """Yield the hidden states and targets in chunks of ``rows``."""
        for start in range(0, len(self.ids), rows):
            part = slice(start, start + rows)
            temperatures = None if self.temperatures is None else self.temperatures[part]
            yield hidden_TD[part], _Targets(self.ids[part], temperatures, self.masks and self.masks.select(part))


def score_tokens(
    hidden_TD: Tensor,
    head: OutputHead,
    targets_T: Tensor,
    temperatures_T: Tensor | None,
    entropy_gradient: bool = False,
    fixed_size: bool = False,
    masks: PackedMasks | None = None,
) -> TokenScores:
    """Score ``targets_T`` under ``softmax(logits / temperature)`` over the allowed tokens.

    Args:
        hidden_TD: hidden states at the positions that predict the targets.
        head: output layer, whose result on the hidden states gives the logits.
        targets_T: target token ids.
        temperatures_T: temperature of each token; None if all are 1.
        entropy_gradient: whether the entropies need a gradient. If not, they are only a metric.
        fixed_size: whether every chunk has the same size, so that a score does not depend on the number of targets.
        masks: allowed tokens of each target; None if all tokens are allowed.
    """
    targets = _Targets(targets_T, temperatures_T, masks)
    count, rows = len(targets_T), _chunk_rows(head.weight.shape[0])
    rows = min(rows, FIXED_CHUNK_ROWS) if fixed_size else rows
    remainder = count % rows
    if remainder:
        padding = (rows if fixed_size else min(rows, -(-remainder // MIN_ROWS) * MIN_ROWS)) - remainder
        hidden_TD, targets = pad(hidden_TD, (0, 0, 0, padding)), targets.pad(padding)
    trains_head = head.weight.requires_grad or (head.bias is not None and head.bias.requires_grad)
    if not (torch.is_grad_enabled() and trains_head):
        log_probs, entropies = _FrozenHead.apply(  # type: ignore[no-untyped-call]
            hidden_TD, head, targets, rows, entropy_gradient
        )
    elif head.weight.dtype not in EXACT_DTYPES:
        log_probs, entropies = _HalfHead.apply(  # type: ignore[no-untyped-call]
            hidden_TD, *head, targets, rows
        )
    else:
        chunks = [
            checkpoint(_score_chunk, hidden, head, chunk, use_reentrant=False)
            for hidden, chunk in targets.chunks(hidden_TD, rows)
        ]
        log_probs, entropies = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return TokenScores(log_probs[:count], (entropies if entropy_gradient else entropies.detach())[:count])


def _chunk_rows(vocabulary: int) -> int:
    """Return the rows per chunk: for a large vocabulary, enough rows to amortize the weight reads.

    >>> [_chunk_rows(vocabulary) for vocabulary in (4096, 49_152, 151_936)]
    [1024, 256, 110]
    """
    return max(1, CHUNK_ELEMENTS // vocabulary, min(MIN_CHUNK_ROWS, MAX_CHUNK_LOGITS // vocabulary))


def scaled_logits(hidden: Tensor, head: OutputHead, temperatures: Tensor | None) -> Tensor:
    """Return logits divided by temperature, [T, V], in float32 or better."""
    return _apply_temperature(head.transform(_head_logits(hidden, head)), temperatures)


def _head_logits(hidden: Tensor, head: OutputHead) -> Tensor:
    if head.weight.dtype in EXACT_DTYPES:
        inputs = hidden.to(head.weight.dtype)
        if torch.is_grad_enabled():
            return linear(inputs, head.weight, head.bias)
        return multiply_rows(inputs, head.weight, head.bias)
    logits = _half_matmul(hidden.to(head.weight.dtype), head.weight.t())
    return logits if head.bias is None else logits.add_(head.bias)


def next_logits(hidden: Tensor, head: OutputHead, temperatures: Tensor | None, packed: PackedWeights) -> Tensor:
    """Return :func:`scaled_logits` for few rows, with faster products on a CPU.

    The product is ``W hᵀ`` on a CPU, which reads the weights in memory order; the result is then stored by columns. Its
    rounding differs from :func:`scaled_logits`, so use it only for scores that are not compared bit by bit.
    """
    if not is_on_cpu(head.weight) or head.weight.dtype not in EXACT_DTYPES:
        return scaled_logits(hidden, head, temperatures)
    inputs, weight = hidden.to(head.weight.dtype), packed.pack([head.weight])
    logits = multiply_columns(head.weight if weight is None else weight, inputs.t(), head.bias).t()
    return _apply_temperature(head.transform(logits), temperatures)


def _apply_temperature(logits: Tensor, temperatures: Tensor | None) -> Tensor:
    return logits if temperatures is None else logits / temperatures[:, None].to(logits.dtype)


def shifted_exp_(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``(z, e^z, Σ e^z)`` for ``z`` = logits minus their maximum, [T, V], [T, V], [T]; ``logits`` becomes z.

    A token's log-probability is ``z − log Σ e^z``. The result equals ``log_softmax`` with fewer passes over memory.
    """
    z = logits.sub_(logits.amax(-1, keepdim=True))
    exp_z = z.exp()
    return z, exp_z, exp_z.sum(-1)


def _score_chunk(hidden: Tensor, head: OutputHead, targets: _Targets) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies with autograd, bitwise equal to :class:`_FrozenHead`."""
    return _score_logits(head.transform(_head_logits(hidden, head)), targets)


def _score_logits(logits: Tensor, targets: _Targets) -> tuple[Tensor, Tensor]:
    """Return the target log-probabilities and the entropies, with autograd."""
    logits = apply_masks(_apply_temperature(logits, targets.temperatures), targets.masks)
    z = logits - logits.detach().amax(-1, keepdim=True)
    p = z.exp()
    total = p.sum(-1)
    chosen = z.gather(1, targets.ids[:, None])[:, 0] - total.log()
    return chosen, total.log() - (p * z.masked_fill(p == 0.0, 0.0)).sum(-1) * total.reciprocal()


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: AutogradContext, hidden_TD: Tensor, head: OutputHead, targets: _Targets, rows: int, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        needs_gradient = ctx.needs_input_grad[0]
        log_probs, entropies, hidden_grads, entropy_grads = [], [], [], []
        for hidden, (ids, temperature, masks) in targets.chunks(hidden_TD, rows):
            logits = scaled_logits(hidden, head, None)
            transform_grad = head.transform.gradient(logits) if needs_gradient else 1.0
            z, p, total = shifted_exp_(apply_masks_(_apply_temperature(logits, temperature), masks))
            log_total, inverse_total = total.log(), total.reciprocal()[:, None]
            log_probs.append(z.gather(1, ids[:, None])[:, 0] - log_total)
            scale = inverse_total if temperature is None else inverse_total / temperature[:, None].to(p.dtype)
            if needs_gradient:
                at, target_weights = ids[:, None], p.gather(1, ids[:, None])
                p.scatter_(1, at, target_weights - total[:, None])  # p − Σp·[v = y]: avoids cancellation
                hidden_grads.append(-scale * _matmul(_apply_transform_grad(p, transform_grad), head.weight))
                p.scatter_(1, at, target_weights)
            z.mul_(p)
            weighted = _sum_finite(z)
            entropy = log_total - weighted * inverse_total[:, 0]
            entropies.append(entropy)
            if needs_gradient and entropy_gradient:
                z.addcmul_(p, (entropy - log_total)[:, None])  # e^z (z − log Σ e^z + H)
                entropy_grads.append(-scale * _matmul(_apply_transform_grad(z, transform_grad), head.weight))
        if needs_gradient:
            ctx.save_for_backward(torch.cat(hidden_grads), *([torch.cat(entropy_grads)] if entropy_gradient else []))
            ctx.dtype = hidden_TD.dtype
        return torch.cat(log_probs), torch.cat(entropies)

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, grad: Tensor, entropy_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_grads, *entropy_grads = ctx.saved_tensors
        out = grad[:, None] * hidden_grads
        if entropy_grads and entropy_grad is not None:
            out = out.addcmul(entropy_grad[:, None], entropy_grads[0])
        return out.to(ctx.dtype), None, None, None, None


class _HalfHead(torch.autograd.Function):
    """Scores under a trained half-precision head."""

    @staticmethod
    def forward(
        ctx: AutogradContext,
        hidden_TD: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        transform: LogitTransform,
        targets: _Targets,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden_TD, weight, bias)
        ctx.transform, ctx.targets, ctx.rows = transform, targets, rows
        head = OutputHead(weight, bias, transform)
        chunks = [_score_chunk(hidden, head, chunk) for hidden, chunk in targets.chunks(hidden_TD, rows)]
        log_probs, entropies = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        return log_probs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TD, weight, bias = ctx.saved_tensors
        head = OutputHead(weight, bias, ctx.transform)
        hidden_grads = []
        weight_grad = torch.zeros_like(weight, dtype=torch.float32)
        bias_grad = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        chunks = ctx.targets.chunks(hidden_TD, ctx.rows)
        for (hidden, targets), *grads in zip(chunks, grad.split(ctx.rows), entropy_grad.split(ctx.rows), strict=True):
            logits = _head_logits(hidden, head).requires_grad_()
            with torch.enable_grad():
                scores = _score_logits(head.transform(logits), targets)
            (logit_grads,) = torch.autograd.grad(scores, logits, grads)
            hidden_grads.append(_matmul(logit_grads, weight))
            weight_grad += _matmul(logit_grads.t(), hidden.to(weight.dtype))
            if bias_grad is not None:
                bias_grad += logit_grads.sum(0)
        return (
            torch.cat(hidden_grads).to(hidden_TD.dtype),
            weight_grad.to(weight.dtype),
            None if bias is None or bias_grad is None else bias_grad.to(bias.dtype),
            *[None] * 3,
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
        return multiply_rows(p, weight.t())
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


@dataclass(frozen=True, slots=True, eq=False)
class PackedMasks:
    """Grammar masks for scored tokens, deduplicated; most tokens have no mask."""

    indices: npt.NDArray[np.int64]  # [R] row of ``table`` for each token, -1 if all tokens are allowed
    table: Tensor  # [M, bytes] uint8: token v is bit v % 8 of byte v // 8

    @staticmethod
    def from_parts(parts: Sequence[tuple[GrammarMasks | None, np.ndarray]], device: torch.device) -> PackedMasks | None:
        """Concatenate the mask tables; None without masks.

        Args:
            parts: pairs of masks and, for each scored token, the index in their table, -1 for no mask.
        """
        numbers: dict[bytes, int] = {}
        indices = []
        for masks, rows in parts:
            mask_indices = [numbers.setdefault(mask, len(numbers)) for mask in (masks.table if masks else ())]
            indices.append(np.array([*mask_indices, -1], np.int64)[rows])  # index -1 selects the last entry
        if not numbers:
            return None
        width = max(map(len, numbers))
        packed = b"".join(mask.ljust(width, b"\0") for mask in numbers)
        table = torch.frombuffer(bytearray(packed), dtype=torch.uint8).view(-1, width)
        return PackedMasks(np.concatenate(indices), table.to(device, non_blocking=True))

    def pad(self, padding: int) -> PackedMasks:
        """Append ``padding`` tokens without masks."""
        return PackedMasks(np.pad(self.indices, (0, padding), constant_values=-1), self.table)

    def masked_rows(self) -> tuple[Tensor, Tensor]:
        """Return the indices of masked tokens, [M], and their masks, [M, bytes]."""
        at = np.flatnonzero(self.indices >= 0)
        return to_device(at, self.table.device), self.table[to_device(self.indices[at], self.table.device)]

    @property
    def is_empty(self) -> bool:
        """True if every token lacks a mask."""
        return not (self.indices >= 0).any()

    def select(self, part: slice) -> PackedMasks:
        """Select the masks for a slice of the tokens."""
        return PackedMasks(self.indices[part], self.table)


def apply_masks_(logits_TV: Tensor, masks: PackedMasks | None) -> Tensor:
    """Apply the masks to the logits in place, [T, V]; tokens without a mask stay unchanged."""
    if masks is not None and not masks.is_empty:
        rows, bits = masks.masked_rows()
        logits_TV[rows] = mask_logits(logits_TV[rows], bits)
    return logits_TV


def apply_masks(logits_TV: Tensor, masks: PackedMasks | None) -> Tensor:
    """Apply the masks with autograd, [T, V]; disallowed tokens get no gradient."""
    if masks is None or masks.is_empty:
        return logits_TV
    rows, bits = masks.masked_rows()
    return logits_TV.index_copy(0, rows, mask_logits(logits_TV[rows], bits))


def mask_logits(logits_MV: Tensor, bits: Tensor) -> Tensor:
    """Set disallowed tokens to minus infinity. Every row needs a mask.

    Args:
        bits: packed mask of each row, [M, bytes] uint8.
    """
    return logits_MV.masked_fill(~unpack_masks(bits, logits_MV.shape[1]), float("-inf"))


def unpack_masks(bits: Tensor, vocabulary: int) -> Tensor:
    """Unpack masks to allowed tokens, [M, V] bool.

    >>> unpack_masks(torch.tensor([[6]], dtype=torch.uint8), 3).tolist()
    [[False, True, True]]
    """
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    unpacked = ((bits[:, :, None] >> shifts) & 1).flatten(1).bool()
    return torch.nn.functional.pad(unpacked[:, :vocabulary], (0, max(0, vocabulary - unpacked.shape[1])))
