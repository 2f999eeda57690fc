"""Linear layers on packed rows, adapters included, with the fastest method for the device and precision.

For frozen float32 weights on a CPU, layers that read the same rows are computed together (:mod:`marft.models.adapted`).
Decoding has few rows, and loading weights from memory takes nearly all the time. Products are then computed as ``W
xᵀ``, which reads the weights in memory order. Everything else runs layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from transformers.activations import SiLUActivation

from marft.models.adapted import Frozen, Low, Stretch, adapted, gated
from marft.models.devices import on_host
from marft.models.held_in_half import few_times_half, multiplied_as
from marft.models.lora import MultiLoraLinear, Routing

EXACT = (torch.float32, torch.float64)


def project(x_ND: Tensor, layers: Sequence[nn.Module], routing: Routing) -> list[Tensor]:
    """Apply several layers to the same rows: [N, in] → a list with [N, out] for each layer."""
    frozen = _frozen(x_ND, layers, routing)
    if frozen is None:
        return [_alone(x_ND, layer) for layer in layers]
    if _in_columns(x_ND, routing):
        return [made.t() for made in _columns(x_ND.t(), layers, frozen, routing)]
    return adapted(x_ND, frozen, list(_stretches(layers, routing, len(x_ND))))


def feed_forward(x_ND: Tensor, mlp: Any, routing: Routing) -> Tensor:
    """Return ``down(act(gate(x)) · up(x))``, [N, D] → [N, D]."""
    layers = mlp.gate_proj, mlp.up_proj, mlp.down_proj
    frozen = _frozen(x_ND, layers, routing) if isinstance(mlp.act_fn, SiLUActivation | nn.SiLU) else None
    if frozen is None:
        gate, up = project(x_ND, layers[:2], routing)
        return project(mlp.act_fn(gate) * up, layers[2:], routing)[0]
    if _in_columns(x_ND, routing):
        gate, up = _columns(x_ND.t(), layers[:2], frozen[:2], routing)
        return _columns(silu(gate).mul_(up), layers[2:], frozen[2:], routing)[0].t()
    return gated(x_ND, frozen, list(_stretches(layers, routing, len(x_ND))))


def _frozen(x: Tensor, layers: Sequence[nn.Module], routing: Routing) -> list[Frozen] | None:
    """Return the frozen layers, or None if a layer is trained or in another precision than its adapters."""
    if not on_host(x) or x.dtype not in EXACT or routing.whole:
        return None
    if routing.rows is not None and not _in_columns(x, routing):  # rows of several policies, one policy per row
        return None
    found = []
    for layer in layers:
        base = layer.base if isinstance(layer, MultiLoraLinear) else layer
        if type(base) is not nn.Linear or base.weight.requires_grad or multiplied_as(base.weight) != x.dtype:
            return None
        found.append(Frozen(base.weight, base.bias))
    return found


def _alone(x: Tensor, layer: nn.Module) -> Tensor:
    if type(layer) is nn.Linear:
        return linear(x, layer.weight, layer.bias)
    out: Tensor = layer(x)
    return out


def _in_columns(x: Tensor, routing: Routing) -> bool:
    return routing.decoding and not (torch.is_grad_enabled() and x.requires_grad)


def _stretches(layers: Sequence[nn.Module], routing: Routing, tokens: int) -> Iterator[Stretch]:
    """Yield the policy spans with their adapters, then the span for padding rows without a policy."""
    end = 0
    for policy, start, stop in routing.stretches:
        yield Stretch(start, stop, tuple(_low(layer, policy) for layer in layers))
        end = stop
    if end < tokens:
        yield Stretch(end, tokens, (None,) * len(layers))


def _low(layer: nn.Module, policy: str | None) -> Low | None:
    adapter = layer.adapter(policy) if isinstance(layer, MultiLoraLinear) else None
    return None if adapter is None else Low(adapter.a, adapter.b, adapter.scale)


def _columns(x_Dn: Tensor, layers: Sequence[nn.Module], frozen: Sequence[Frozen], routing: Routing) -> list[Tensor]:
    """Apply several layers to rows stored as columns: [in, n] → a list with [out, n] for each layer."""
    read_Dn = x_Dn.to(frozen[0].held.dtype) if few_times_half(x_Dn.shape[1]) else x_Dn
    made = [_column_product(read_Dn, layer).to(x_Dn.dtype) for layer in frozen]
    for layer, out in zip(layers, made, strict=True):
        if routing.rows is None:
            for policy, start, stop in routing.stretches:
                low = _low(layer, policy)
                if low is not None:
                    out[:, start:stop].addmm_(low.b, low.a @ x_Dn[:, start:stop], alpha=low.scale)
        elif isinstance(layer, MultiLoraLinear) and (stack := layer.stacked(routing.rows)) is not None:
            a, b, mask = stack
            out.addmm_(b, (a @ x_Dn).mul_(mask.t()))
    return made


def _column_product(x_Dn: Tensor, layer: Frozen) -> Tensor:
    weight = layer.held if x_Dn.dtype == layer.held.dtype else layer.weight
    if layer.bias is None:
        return weight @ x_Dn
    if weight.dtype != layer.bias.dtype:
        return (weight @ x_Dn) + layer.bias[:, None]
    return torch.addmm(layer.bias[:, None], weight, x_Dn)
