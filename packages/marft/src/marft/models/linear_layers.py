"""Linear layers on packed rows, adapters included, with the fastest method for the device and precision.

For frozen float32 weights on a CPU, layers that read the same rows are computed together
(:mod:`marft.models.lora_autograd`). Decoding has few rows, and loading weights from memory takes nearly all the time.
Products are then computed as ``W xᵀ``, which reads the weights in memory order. Everything else runs layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from transformers.activations import SiLUActivation

from marft.models.devices import is_on_cpu
from marft.models.half_precision import compute_dtype, uses_half_products
from marft.models.lora import MultiLoraLinear, Routing
from marft.models.lora_autograd import FrozenLinear, LoraFactors, PolicySpan, apply_gated_mlp, apply_linears

EXACT_DTYPES = (torch.float32, torch.float64)


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
    if routing.row_policies is not None and not _uses_columns(
        x, routing
    ):  # rows of several policies, one policy per row
        return None
    frozen = []
    for layer in layers:
        base = layer.base if isinstance(layer, MultiLoraLinear) else layer
        if type(base) is not nn.Linear or base.weight.requires_grad or compute_dtype(base.weight) != x.dtype:
            return None
        frozen.append(FrozenLinear(base.weight, base.bias))
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
        yield PolicySpan(start, stop, tuple(_lora_factors(layer, policy) for layer in layers))
        end = stop
    if end < tokens:
        yield PolicySpan(end, tokens, (None,) * len(layers))


def _lora_factors(layer: nn.Module, policy: str | None) -> LoraFactors | None:
    adapter = layer.adapter(policy) if isinstance(layer, MultiLoraLinear) else None
    return None if adapter is None else LoraFactors(adapter.a, adapter.b, adapter.scale)


def _apply_columns(
    x_Dn: Tensor, layers: Sequence[nn.Module], frozen: Sequence[FrozenLinear], routing: Routing
) -> list[Tensor]:
    """Apply several layers to rows stored as columns: [in, n] → a list with [out, n] for each layer."""
    input_Dn = x_Dn.to(frozen[0].stored_weight.dtype) if uses_half_products(x_Dn.shape[1]) else x_Dn
    outputs = [_column_matmul(input_Dn, layer).to(x_Dn.dtype) for layer in frozen]
    for layer, out in zip(layers, outputs, strict=True):
        if routing.row_policies is None:
            for policy, start, stop in routing.spans:
                factors = _lora_factors(layer, policy)
                if factors is not None:
                    out[:, start:stop].addmm_(factors.b, factors.a @ x_Dn[:, start:stop], alpha=factors.scale)
        elif isinstance(layer, MultiLoraLinear) and (stack := layer.stack_adapters(routing.row_policies)) is not None:
            a, b, mask = stack
            out.addmm_(b, (a @ x_Dn).mul_(mask.t()))
    return outputs


def _column_matmul(x_Dn: Tensor, layer: FrozenLinear) -> Tensor:
    weight = layer.stored_weight if x_Dn.dtype == layer.stored_weight.dtype else layer.weight
    if layer.bias is None:
        return weight @ x_Dn
    if weight.dtype != layer.bias.dtype:
        return (weight @ x_Dn) + layer.bias[:, None]
    return torch.addmm(layer.bias[:, None], weight, x_Dn)
