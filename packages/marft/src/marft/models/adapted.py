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

from marft.models.held_in_half import multiplied_as

BLOCK = 1536  # maximum rows with intermediate values in memory at once; smaller blocks make products slower


class Low(NamedTuple):
    """LoRA factors with their scale."""

    a: Tensor  # [r, in]
    b: Tensor  # [out, r]
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Row span ``start`` to ``stop`` for a single policy, with its adapter (or None) for each weight."""

    start: int
    stop: int
    adapters: tuple[Low | None, ...]

    @property
    def rows(self) -> slice:
        """Slice of the span's rows."""
        return slice(self.start, self.stop)

    def blocks(self) -> Iterator[slice]:
        """Yield the rows in even blocks with at most :data:`BLOCK` rows."""
        count = -(-(self.stop - self.start) // BLOCK)
        edges = [self.start + (self.stop - self.start) * part // count for part in range(count + 1)]
        yield from (slice(*edge) for edge in itertools.pairwise(edges))


class Frozen(NamedTuple):
    """Frozen linear layer: stored weight [out, in] and bias [out]."""

    held: Tensor
    bias: Tensor | None

    @property
    def weight(self) -> Tensor:
        """Weight in compute precision: float32 if stored in half precision."""
        return self.held.to(multiplied_as(self.held))


def adapted(x_ND: Tensor, layers: Sequence[Frozen], stretches: Sequence[Stretch]) -> list[Tensor]:
    """Apply several layers to the same rows: [N, in] → a list with [N, out] for each layer."""
    parameters = [part for stretch in stretches for low in stretch.adapters if low for part in (low.a, low.b)]
    made = _Together.apply(x_ND, layers, stretches, *parameters)  # type: ignore[no-untyped-call]
    return list(made)


def gated(x_ND: Tensor, layers: Sequence[Frozen], stretches: Sequence[Stretch]) -> Tensor:
    """Return ``down(silu(gate(x)) · up(x))``, [N, in]. Only two tensors with shape [N, intermediate] stay in memory.

    Args:
        layers: gate, up and down.
        stretches: spans that together cover all N rows.
    """
    parameters = [part for stretch in stretches for low in stretch.adapters if low for part in (low.a, low.b)]
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x_ND, *parameters))
    made: Tensor = _Gated.apply(x_ND, layers, stretches, learns, *parameters)  # type: ignore[no-untyped-call]
    return made


class _Together(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, layers: Sequence[Frozen], stretches: Sequence[Stretch], *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        made = tuple(linear(x, layer.weight, layer.bias) for layer in layers)
        lows = [add_low(x[one.rows], [out[one.rows] for out in made], one.adapters) for one in stretches]
        ctx.layers, ctx.stretches, ctx.lows = layers, stretches, lows
        ctx.save_for_backward(x, *parameters)  # raises an error if they change before the backward pass
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *_ = ctx.saved_tensors
        dx = None
        if ctx.needs_input_grad[0]:
            dx = grads[0] @ ctx.layers[0].weight
            for grad, layer in zip(grads[1:], ctx.layers[1:], strict=True):
                dx.addmm_(grad, layer.weight)
        of_parameters: list[Tensor] = []
        for one, lows in zip(ctx.stretches, ctx.lows, strict=True):
            rows = one.rows
            of_parameters += low_gradients(
                x[rows], [grad[rows] for grad in grads], one.adapters, lows, None if dx is None else dx[rows]
            )
        return dx, None, None, *of_parameters


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, layers: Sequence[Frozen], stretches: Sequence[Stretch], keep: bool, *parameters: Tensor
    ) -> Tensor:
        out, width = torch.empty_like(x), len(layers[0].held)
        gate, up = (x.new_empty(len(x) if keep else 0, width) for _ in range(2))
        of_blocks: list[list[list[Tensor | None]]] = []
        for one in stretches:
            for rows in one.blocks():
                g, u = _gate_and_up(x[rows], layers, [gate[rows], up[rows]] if keep else None)
                first = add_low(x[rows], [g, u], one.adapters[:2])
                hidden = silu(g).mul_(u)
                _into(out[rows], hidden, layers[2])
                of_blocks.append([first, add_low(hidden, [out[rows]], one.adapters[2:])])
        if keep:
            ctx.layers, ctx.stretches, ctx.of_blocks = layers, stretches, of_blocks
            ctx.save_for_backward(x, gate, up, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, up, *_ = ctx.saved_tensors
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        blocks = iter(ctx.of_blocks)
        of_parameters: list[Tensor] = []
        for one in ctx.stretches:
            total: list[Tensor] = []
            for rows in one.blocks():
                part = _gated_gradients(
                    (x[rows], gate[rows], up[rows]), grad[rows], ctx.layers, one.adapters, next(blocks),
                    None if dx is None else dx[rows],
                )  # fmt: skip
                total = [a.add_(b) for a, b in zip(total, part, strict=True)] if total else part
            of_parameters += total
        return dx, None, None, None, *of_parameters


def _gate_and_up(x: Tensor, layers: Sequence[Frozen], into: list[Tensor] | None) -> list[Tensor]:
    if into is None:
        return [linear(x, layer.weight, layer.bias) for layer in layers[:2]]
    for out, layer in zip(into, layers, strict=False):
        _into(out, x, layer)
    return into


def _into(out: Tensor, x: Tensor, layer: Frozen) -> None:
    """Apply ``linear`` with its result in an existing tensor."""
    if layer.bias is None:
        torch.mm(x, layer.weight.t(), out=out)
    else:
        torch.addmm(layer.bias, x, layer.weight.t(), out=out)


def _gated_gradients(
    saved: tuple[Tensor, Tensor, Tensor], grad: Tensor, layers: Sequence[Frozen], adapters: Sequence[Low | None],
    lows: list[list[Tensor | None]], dx: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients for a block's parameters, in their order; writes ``dx``."""
    x, g, u = saved
    weights = [layer.weight for layer in layers]
    turned = silu(g)
    hidden = turned * u if adapters[2] else turned
    d_hidden = grad @ weights[2]
    of_down = low_gradients(hidden, [grad], adapters[2:], lows[1], d_hidden)
    du = turned.mul_(d_hidden) if hidden is not turned else turned * d_hidden
    dg = torch.ops.aten.silu_backward(d_hidden.mul_(u), g)
    if dx is not None:
        torch.mm(dg, weights[0], out=dx)
        dx.addmm_(du, weights[1])
    return low_gradients(x, [dg, du], adapters[:2], lows[0], dx) + of_down


def add_low(x_nD: Tensor, made: Sequence[Tensor], adapters: Sequence[Low | None]) -> list[Tensor | None]:
    """Add adapter products to the layer outputs in place; return ``x Aᵀ`` for each adapter, [n, r] or None."""
    present = [low for low in adapters if low]
    if not present:
        return [None] * len(adapters)
    stacked = present[0].a if len(present) == 1 else torch.cat([low.a for low in present])
    products = iter((x_nD @ stacked.t()).split([len(low.a) for low in present], dim=1))
    lows = [next(products) if low else None for low in adapters]
    for out, low, product in zip(made, adapters, lows, strict=True):
        if low is not None and product is not None:
            out.addmm_(product, low.b.t(), alpha=low.scale)
    return lows


def low_gradients(
    x_nD: Tensor, grads: Sequence[Tensor], adapters: Sequence[Low | None], lows: Sequence[Tensor | None],
    dx_nD: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients for A and B in each adapter; adds the adapters' part to ``dx_nD`` in place."""
    present = [(g, one, low) for g, one, low in zip(grads, adapters, lows, strict=True) if one and low is not None]
    if not present:
        return []
    backs = [(one.b.t() @ g.t()).mul_(one.scale) for g, one, _ in present]  # s (dy B)ᵀ, [r, n]
    back = backs[0] if len(backs) == 1 else torch.cat(backs)
    if dx_nD is not None:
        stacked = present[0][1].a if len(present) == 1 else torch.cat([one.a for _, one, _ in present])
        dx_nD.addmm_(back.t(), stacked)
    of_a = (back @ x_nD).split([len(one.a) for _, one, _ in present])
    of_b = [(low.t() @ g).mul_(one.scale).t().contiguous() for g, one, low in present]
    return [part for pair in zip(of_a, of_b, strict=True) for part in pair]
