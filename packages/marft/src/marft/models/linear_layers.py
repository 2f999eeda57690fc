"""Linear layers on packed rows, adapters included, with the fastest method for the device and precision.

For frozen float32 weights on a CPU, layers that read the same rows are computed together, in an autograd Function of
their own. Autograd would copy each product to add the adapter's product. It would fill the gradient of other rows with
zeros, and sum one gradient for each layer that reads the same input. Here every result is written in place into one
tensor, and skinny products use the faster orientation. The results are equal up to the order of sums.

A Function processes spans of rows, each of one policy. W is frozen; A [r, in] and B [out, r] are trained:
``y = x Wᵀ + s (x Aᵀ) Bᵀ``, ``dx = dy W + s (dy B) A``, ``dA = s (dy B)ᵀ x``, ``dB = s dyᵀ (x Aᵀ)``.

A quantized W is dequantized in the forward, and again in the backward; no Function saves it.

Decoding has few rows, and loading weights from memory takes nearly all the time. Products are then computed as
``W xᵀ``, which reads the weights in memory order. Everything else runs layer by layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, silu
from transformers.activations import SiLUActivation

from marft.models.cpu_products import add_product, multiply_columns, multiply_rows
from marft.models.devices import EXACT_DTYPES, AutogradContext, is_on_cpu
from marft.models.half_precision import compute_dtype, uses_half_products
from marft.models.lora import Adapter, MultiLoraLinear, Routing
from marft.models.quantization import QuantizedLinear

MAX_BLOCK_ROWS = 1536  # maximum rows with intermediate values in memory at once; smaller blocks make products slower


def project(x_ND: Tensor, layers: Sequence[nn.Module], routing: Routing) -> list[Tensor]:
    """Apply several layers to the same rows: [N, in] → a list with [N, out] for each layer."""
    frozen = _frozen_layers(x_ND, layers, routing)
    if frozen is None:
        return [_apply_layer(x_ND, layer) for layer in layers]
    if _uses_columns(x_ND, routing):
        return [output.t() for output in _apply_columns(x_ND.t(), layers, frozen, routing)]
    return apply_linears(x_ND, frozen, list(_policy_spans(layers, routing, len(x_ND))))


def feed_forward(x_ND: Tensor, mlp: Any, routing: Routing) -> Tensor:
    """Return ``down(act(gate(x)) · up(x))``, [N, D] → [N, D]."""
    layers = mlp.gate_proj, mlp.up_proj, mlp.down_proj
    frozen = _frozen_layers(x_ND, layers, routing) if isinstance(mlp.act_fn, SiLUActivation | nn.SiLU) else None
    if frozen is None:
        gate, up = project(x_ND, layers[:2], routing)
        return project(mlp.act_fn(gate) * up, layers[2:], routing)[0]
    if _uses_columns(x_ND, routing):
        gate, up = _apply_columns(x_ND.t(), layers[:2], frozen[:2], routing)
        return _apply_columns(silu(gate).mul_(up), layers[2:], frozen[2:], routing)[0].t()
    return apply_gated_mlp(x_ND, frozen, list(_policy_spans(layers, routing, len(x_ND))))


def _frozen_layers(x: Tensor, layers: Sequence[nn.Module], routing: Routing) -> list[FrozenLinear] | None:
    """Return the frozen layers, or None if a layer is trained or in another precision than its adapters."""
    if not is_on_cpu(x) or x.dtype not in EXACT_DTYPES or routing.full_batch:
        return None
    if routing.row_policies is not None and not _uses_columns(x, routing):
        return None  # each row has its own policy
    frozen = []
    for layer in layers:
        base = layer.base if isinstance(layer, MultiLoraLinear) else layer
        if isinstance(base, QuantizedLinear):
            frozen.append(FrozenLinear(base, base.bias))
        elif type(base) is nn.Linear and not base.weight.requires_grad:
            frozen.append(FrozenLinear(base.weight, base.bias))
        else:
            return None
        if compute_dtype(frozen[-1].source) != x.dtype:
            return None
    return frozen


def _apply_layer(x: Tensor, layer: nn.Module) -> Tensor:
    if type(layer) is nn.Linear:
        return linear(x, layer.weight, layer.bias)
    out: Tensor = layer(x)
    return out


def _uses_columns(x: Tensor, routing: Routing) -> bool:
    return routing.decoding and not (torch.is_grad_enabled() and x.requires_grad)


def _policy_spans(layers: Sequence[nn.Module], routing: Routing, tokens: int) -> Iterator[PolicySpan]:
    """Yield the policy spans with their adapters, then the span for padding rows without a policy."""
    end = 0
    for policy, start, stop in routing.spans:
        yield PolicySpan(start, stop, tuple(_find_adapter(layer, policy) for layer in layers))
        end = stop
    if end < tokens:
        yield PolicySpan(end, tokens, (None,) * len(layers))


def _find_adapter(layer: nn.Module, policy: str | None) -> Adapter | None:
    return layer.get_adapter(policy) if isinstance(layer, MultiLoraLinear) else None


def _apply_columns(
    x_Dn: Tensor, layers: Sequence[nn.Module], frozen: Sequence[FrozenLinear], routing: Routing
) -> list[Tensor]:
    """Apply several layers to rows stored as columns: [in, n] → a list with [out, n] for each layer."""
    input_Dn = x_Dn.to(frozen[0].source.dtype) if uses_half_products(x_Dn.shape[1]) else x_Dn
    outputs = [_column_matmul(input_Dn, layer).to(x_Dn.dtype) for layer in frozen]
    for layer, out in zip(layers, outputs, strict=True):
        if routing.row_policies is None:
            for policy, start, stop in routing.spans:
                adapter = _find_adapter(layer, policy)
                if adapter is not None:
                    out[:, start:stop].addmm_(adapter.b, adapter.a @ x_Dn[:, start:stop], alpha=adapter.scale)
        elif isinstance(layer, MultiLoraLinear) and (stack := layer.stack_adapters(routing.row_policies)) is not None:
            a, b, mask = stack
            out.addmm_(b, (a @ x_Dn).mul_(mask.t()))
    return outputs


def _column_matmul(x_Dn: Tensor, layer: FrozenLinear) -> Tensor:
    weight = layer.stored_weight if x_Dn.dtype == layer.source.dtype else layer.weight
    if layer.bias is not None and weight.dtype != layer.bias.dtype:
        return (weight @ x_Dn) + layer.bias[:, None]
    return multiply_columns(weight, x_Dn, layer.bias)


@dataclass(frozen=True, slots=True, eq=False)
class PolicySpan:
    """Row span ``start`` to ``stop`` for a single policy, with its adapter (or None) for each weight."""

    start: int
    stop: int
    adapters: tuple[Adapter | None, ...]

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
    """Frozen linear layer: stored weight [out, in], or the quantized layer that has it, and bias [out]."""

    source: Tensor | QuantizedLinear
    bias: Tensor | None

    @property
    def stored_weight(self) -> Tensor:
        """Weight in the precision of its storage, or dequantized."""
        return self.source.weight if isinstance(self.source, QuantizedLinear) else self.source

    @property
    def width(self) -> int:
        """Number of outputs."""
        return self.source.out_features if isinstance(self.source, QuantizedLinear) else len(self.source)

    def dequantized(self) -> FrozenLinear:
        """Return the layer with a dequantized weight, for several products; an unquantized layer itself."""
        return self._replace(source=self.stored_weight)

    @property
    def weight(self) -> Tensor:
        """Weight in compute precision: float32 if stored in half precision."""
        return self.stored_weight.to(compute_dtype(self.source))


def apply_linears(x_ND: Tensor, layers: Sequence[FrozenLinear], spans: Sequence[PolicySpan]) -> list[Tensor]:
    """Apply several layers to the same rows: [N, in] → a list with [N, out] for each layer."""
    outputs = _LoraLinears.apply(x_ND, layers, spans, *_parameters(spans))  # type: ignore[no-untyped-call]
    return list(outputs)


def apply_gated_mlp(x_ND: Tensor, layers: Sequence[FrozenLinear], spans: Sequence[PolicySpan]) -> Tensor:
    """Return ``down(silu(gate(x)) · up(x))``, [N, in]. Only two tensors with shape [N, intermediate] stay in memory.

    Args:
        layers: gate, up and down.
        spans: spans that together cover all N rows.
    """
    parameters = _parameters(spans)
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x_ND, *parameters))
    output: Tensor = _GatedMlp.apply(x_ND, layers, spans, needs_grad, *parameters)  # type: ignore[no-untyped-call]
    return output


def _parameters(spans: Sequence[PolicySpan]) -> list[Tensor]:
    return [part for span in spans for adapter in span.adapters if adapter for part in (adapter.a, adapter.b)]


class _LoraLinears(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: AutogradContext,
        x: Tensor,
        layers: Sequence[FrozenLinear],
        spans: Sequence[PolicySpan],
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        outputs = tuple(multiply_rows(x, layer.weight, layer.bias) for layer in layers)
        low_rank = [add_lora(x[span.rows], [out[span.rows] for out in outputs], span.adapters) for span in spans]
        ctx.layers, ctx.stretches, ctx.lows = layers, spans, low_rank
        ctx.save_for_backward(x, *parameters)  # raises an error if they change before the backward pass
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *_ = ctx.saved_tensors
        dx = None
        if ctx.needs_input_grad[0]:
            dx = multiply_rows(grads[0], ctx.layers[0].weight.t())
            for grad, layer in zip(grads[1:], ctx.layers[1:], strict=True):
                dx = add_product(dx, grad, layer.weight.t())
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
        ctx: AutogradContext,
        x: Tensor,
        layers: Sequence[FrozenLinear],
        spans: Sequence[PolicySpan],
        keep: bool,
        *parameters: Tensor,
    ) -> Tensor:
        plain = [layer.dequantized() for layer in layers]
        outputs, gates, ups = [], [], []
        block_low_rank: list[list[list[Tensor | None]]] = []
        for span in spans:
            for rows in span.iter_blocks():
                g, u = (multiply_rows(x[rows], layer.weight, layer.bias) for layer in plain[:2])
                first = add_lora(x[rows], [g, u], span.adapters[:2])
                hidden = silu(g).mul_(u)
                out = multiply_rows(hidden, plain[2].weight, plain[2].bias)
                block_low_rank.append([first, add_lora(hidden, [out], span.adapters[2:])])
                outputs.append(out)
                if keep:
                    gates.append(g)
                    ups.append(u)
        if keep:
            ctx.layers, ctx.stretches, ctx.of_blocks = layers, spans, block_low_rank
            ctx.save_for_backward(x, *gates, *ups, *parameters)
        return _join(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, *saved), count = ctx.saved_tensors, len(ctx.of_blocks)
        blocks = zip(ctx.of_blocks, saved[:count], saved[count : 2 * count], strict=True)
        layers = [layer.dequantized() for layer in ctx.layers]
        input_grads: list[Tensor] = []
        parameter_grads: list[Tensor] = []
        for span in ctx.stretches:
            total: list[Tensor] = []
            for rows in span.iter_blocks():
                low_rank, g, u = next(blocks)
                needs_dx = ctx.needs_input_grad[0]
                dx, part = _gated_mlp_gradients((x[rows], g, u), grad[rows], layers, span.adapters, low_rank, needs_dx)
                total = [a.add_(b) for a, b in zip(total, part, strict=True)] if total else part
                if dx is not None:
                    input_grads.append(dx)
            parameter_grads += total
        return _join(input_grads) if input_grads else None, None, None, None, *parameter_grads


def _join(blocks: Sequence[Tensor]) -> Tensor:
    return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks))


def _gated_mlp_gradients(
    saved: tuple[Tensor, Tensor, Tensor],
    grad: Tensor,
    layers: Sequence[FrozenLinear],
    adapters: Sequence[Adapter | None],
    low_rank: list[list[Tensor | None]],
    needs_dx: bool,
) -> tuple[Tensor | None, list[Tensor]]:
    """Return a block's input gradient, if needed, and the gradients for its parameters, in their order."""
    x, g, u = saved
    weights = [layer.weight.t() for layer in layers]
    activated = silu(g)
    hidden = activated * u if adapters[2] else activated
    d_hidden = multiply_rows(grad, weights[2])
    down_grads = lora_gradients(hidden, [grad], adapters[2:], low_rank[1], d_hidden)
    du = activated.mul_(d_hidden) if hidden is not activated else activated * d_hidden
    dg = torch.ops.aten.silu_backward(d_hidden.mul_(u), g)
    dx = add_product(multiply_rows(dg, weights[0]), du, weights[1]) if needs_dx else None
    return dx, lora_gradients(x, [dg, du], adapters[:2], low_rank[0], dx) + down_grads


def add_lora(x_nD: Tensor, outputs: Sequence[Tensor], adapters: Sequence[Adapter | None]) -> list[Tensor | None]:
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
    adapters: Sequence[Adapter | None],
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
