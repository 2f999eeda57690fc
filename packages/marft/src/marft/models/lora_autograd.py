"""Products of frozen weights and LoRA adapters, with gradients in a minimal number of passes.

Autograd would copy each product to add the adapter's product. It would fill the gradient of other rows with zeros, and
sum one gradient for each layer that reads the same input. Here every result is written in place into one tensor, and
skinny products use the faster orientation. The results are equal up to the order of sums.

An autograd Function processes a span of rows of one policy. W is frozen; A [r, in] and B [out, r] are trained:
``y = x Wᵀ + s (x Aᵀ) Bᵀ``, ``dx = dy W + s (dy B) A``, ``dA = s (dy B)ᵀ x``, ``dB = s dyᵀ (x Aᵀ)``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, silu

from marft.models.half_precision import compute_dtype

MAX_BLOCK_ROWS = 1536  # maximum rows with intermediate values in memory at once; smaller blocks make products slower


class LoraFactors(NamedTuple):
    """LoRA factors with their scale."""

    a: Tensor  # [r, in]
    b: Tensor  # [out, r]
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class PolicySpan:
    """Row span ``start`` to ``stop`` for a single policy, with its adapter (or None) for each weight."""

    start: int
    stop: int
    adapters: tuple[LoraFactors | None, ...]

    @property
    def rows(self) -> slice:
        """Slice of the span's rows."""
        return slice(self.start, self.stop)

    def iter_blocks(self) -> Iterator[slice]:
        """Yield the rows in even blocks with at most :data:`MAX_BLOCK_ROWS` rows."""
        count = -(-(self.stop - self.start) // MAX_BLOCK_ROWS)
        edges = [self.start + (self.stop - self.start) * part // count for part in range(count + 1)]
        yield from (slice(*edge) for edge in itertools.pairwise(edges))


class FrozenLinear(NamedTuple):
    """Frozen linear layer: stored weight [out, in] and bias [out]."""

    stored_weight: Tensor
    bias: Tensor | None

    @property
    def weight(self) -> Tensor:
        """Weight in compute precision: float32 if stored in half precision."""
        return self.stored_weight.to(compute_dtype(self.stored_weight))


def apply_linears(x_ND: Tensor, layers: Sequence[FrozenLinear], spans: Sequence[PolicySpan]) -> list[Tensor]:
    """Apply several layers to the same rows: [N, in] → a list with [N, out] for each layer."""
    parameters = [part for span in spans for factors in span.adapters if factors for part in (factors.a, factors.b)]
    outputs = _LoraLinears.apply(x_ND, layers, spans, *parameters)  # type: ignore[no-untyped-call]
    return list(outputs)


def apply_gated_mlp(x_ND: Tensor, layers: Sequence[FrozenLinear], spans: Sequence[PolicySpan]) -> Tensor:
    """Return ``down(silu(gate(x)) · up(x))``, [N, in]. Only two tensors with shape [N, intermediate] stay in memory.

    Args:
        layers: gate, up and down.
        spans: spans that together cover all N rows.
    """
    parameters = [part for span in spans for factors in span.adapters if factors for part in (factors.a, factors.b)]
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x_ND, *parameters))
    output: Tensor = _GatedMlp.apply(x_ND, layers, spans, needs_grad, *parameters)  # type: ignore[no-untyped-call]
    return output


class _LoraLinears(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, layers: Sequence[FrozenLinear], spans: Sequence[PolicySpan], *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        outputs = tuple(linear(x, layer.weight, layer.bias) for layer in layers)
        low_rank = [add_lora(x[span.rows], [out[span.rows] for out in outputs], span.adapters) for span in spans]
        ctx.layers, ctx.stretches, ctx.lows = layers, spans, low_rank
        ctx.save_for_backward(x, *parameters)  # raises an error if they change before the backward pass
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *_ = ctx.saved_tensors
        dx = None
        if ctx.needs_input_grad[0]:
            dx = grads[0] @ ctx.layers[0].weight
            for grad, layer in zip(grads[1:], ctx.layers[1:], strict=True):
                dx.addmm_(grad, layer.weight)
        parameter_grads: list[Tensor] = []
        for span, low_rank in zip(ctx.stretches, ctx.lows, strict=True):
            rows = span.rows
            parameter_grads += lora_gradients(
                x[rows], [grad[rows] for grad in grads], span.adapters, low_rank, None if dx is None else dx[rows]
            )
        return dx, None, None, *parameter_grads


class _GatedMlp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        layers: Sequence[FrozenLinear],
        spans: Sequence[PolicySpan],
        keep: bool,
        *parameters: Tensor,
    ) -> Tensor:
        out, width = torch.empty_like(x), len(layers[0].stored_weight)
        gate, up = (x.new_empty(len(x) if keep else 0, width) for _ in range(2))
        block_low_rank: list[list[list[Tensor | None]]] = []
        for span in spans:
            for rows in span.iter_blocks():
                g, u = _apply_gate_and_up(x[rows], layers, [gate[rows], up[rows]] if keep else None)
                first = add_lora(x[rows], [g, u], span.adapters[:2])
                hidden = silu(g).mul_(u)
                _linear_out(out[rows], hidden, layers[2])
                block_low_rank.append([first, add_lora(hidden, [out[rows]], span.adapters[2:])])
        if keep:
            ctx.layers, ctx.stretches, ctx.of_blocks = layers, spans, block_low_rank
            ctx.save_for_backward(x, gate, up, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, up, *_ = ctx.saved_tensors
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        blocks = iter(ctx.of_blocks)
        parameter_grads: list[Tensor] = []
        for span in ctx.stretches:
            total: list[Tensor] = []
            for rows in span.iter_blocks():
                part = _gated_mlp_gradients(
                    (x[rows], gate[rows], up[rows]),
                    grad[rows],
                    ctx.layers,
                    span.adapters,
                    next(blocks),
                    None if dx is None else dx[rows],
                )
                total = [a.add_(b) for a, b in zip(total, part, strict=True)] if total else part
            parameter_grads += total
        return dx, None, None, None, *parameter_grads


def _apply_gate_and_up(x: Tensor, layers: Sequence[FrozenLinear], buffers: list[Tensor] | None) -> list[Tensor]:
    if buffers is None:
        return [linear(x, layer.weight, layer.bias) for layer in layers[:2]]
    for out, layer in zip(buffers, layers, strict=False):
        _linear_out(out, x, layer)
    return buffers


def _linear_out(out: Tensor, x: Tensor, layer: FrozenLinear) -> None:
    """Apply ``linear`` with its result in an existing tensor."""
    if layer.bias is None:
        torch.mm(x, layer.weight.t(), out=out)
    else:
        torch.addmm(layer.bias, x, layer.weight.t(), out=out)


def _gated_mlp_gradients(
    saved: tuple[Tensor, Tensor, Tensor],
    grad: Tensor,
    layers: Sequence[FrozenLinear],
    adapters: Sequence[LoraFactors | None],
    low_rank: list[list[Tensor | None]],
    dx: Tensor | None,
) -> list[Tensor]:
    """Return the gradients for a block's parameters, in their order; writes ``dx``."""
    x, g, u = saved
    weights = [layer.weight for layer in layers]
    activated = silu(g)
    hidden = activated * u if adapters[2] else activated
    d_hidden = grad @ weights[2]
    down_grads = lora_gradients(hidden, [grad], adapters[2:], low_rank[1], d_hidden)
    du = activated.mul_(d_hidden) if hidden is not activated else activated * d_hidden
    dg = torch.ops.aten.silu_backward(d_hidden.mul_(u), g)
    if dx is not None:
        torch.mm(dg, weights[0], out=dx)
        dx.addmm_(du, weights[1])
    return lora_gradients(x, [dg, du], adapters[:2], low_rank[0], dx) + down_grads


def add_lora(x_nD: Tensor, outputs: Sequence[Tensor], adapters: Sequence[LoraFactors | None]) -> list[Tensor | None]:
    """Add adapter products to the layer outputs in place; return ``x Aᵀ`` for each adapter, [n, r] or None."""
    present = [low for low in adapters if low]
    if not present:
        return [None] * len(adapters)
    stacked = present[0].a if len(present) == 1 else torch.cat([low.a for low in present])
    inputs_by_adapter = iter((x_nD @ stacked.t()).split([len(low.a) for low in present], dim=1))
    low_rank = [next(inputs_by_adapter) if low else None for low in adapters]
    for out, low, product in zip(outputs, adapters, low_rank, strict=True):
        if low is not None and product is not None:
            out.addmm_(product, low.b.t(), alpha=low.scale)
    return low_rank


def lora_gradients(
    x_nD: Tensor,
    grads: Sequence[Tensor],
    adapters: Sequence[LoraFactors | None],
    low_rank: Sequence[Tensor | None],
    dx_nD: Tensor | None,
) -> list[Tensor]:
    """Return the gradients for A and B in each adapter; adds the adapters' part to ``dx_nD`` in place."""
    present = [
        (g, factors, low)
        for g, factors, low in zip(grads, adapters, low_rank, strict=True)
        if factors and low is not None
    ]
    if not present:
        return []
    low_rank_grads = [(factors.b.t() @ g.t()).mul_(factors.scale) for g, factors, _ in present]  # s (dy B)ᵀ, [r, n]
    stacked_grads = low_rank_grads[0] if len(low_rank_grads) == 1 else torch.cat(low_rank_grads)
    if dx_nD is not None:
        stacked = present[0][1].a if len(present) == 1 else torch.cat([factors.a for _, factors, _ in present])
        dx_nD.addmm_(stacked_grads.t(), stacked)
    a_grads = (stacked_grads @ x_nD).split([len(factors.a) for _, factors, _ in present])
    b_grads = [(low.t() @ g).mul_(factors.scale).t().contiguous() for g, factors, low in present]
    return [part for pair in zip(a_grads, b_grads, strict=True) for part in pair]
