"""Decoder forward for one new token per row on a CPU, with weights and adapters looked up once per membership.

For one token per row, looking up modules and adapters takes longer than most operations. A running batch keeps its rows
for many steps. So this forward looks everything up when a row joins or leaves, and a step only calls operations. They
are those of :func:`~marft.models.fused_decoder.fused_forward` in the same order, so results are equal bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu
from transformers.activations import SiLUActivation

from marft.models.attention import AttentionPlan, AttentionSpec
from marft.models.backbone import Backbone
from marft.models.cpu_products import PackedWeights, multiply_columns, uses_onednn
from marft.models.devices import EXACT_DTYPES, is_on_cpu
from marft.models.fused_decoder import rotary_factors, rotate_pairs
from marft.models.lora import Adapter, MultiLoraLinear, scale_mask

# linear layers with their adapters on rows stored as columns: [in, n] → [out, n] of each layer
Columns = Callable[[Tensor], list[Tensor]]
Norm = Callable[[Tensor], Tensor]


def find_decode_pass(backbone: Backbone, policies: Sequence[str | None]) -> DecodePass | None:
    """Return the forward for rows of these policies; None if the backbone needs the general forward.

    Weights must keep their tensors while the forward is in use; their values may change with a single policy only.
    """
    decoder, weight = backbone.decoder, backbone.head.weight
    if not backbone.fused or backbone.shards is not None or not is_on_cpu(weight) or weight.dtype not in EXACT_DTYPES:
        return None
    if any(parameter.dtype != weight.dtype for parameter in decoder.parameters()):
        return None  # weights of a half-precision base stay in half precision
    adapters = _Adapters(policies)
    layers = [_find_layer(layer, adapters, backbone.packed_weights) for layer in decoder.layers]
    found = [layer for layer in layers if layer is not None]
    return DecodePass(decoder, found, _find_norm(decoder.norm)) if len(found) == len(layers) else None


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """Functions of a decoder layer, and the settings of its attention."""

    input_norm: Norm
    qkv: Columns
    qk_norms: tuple[Norm, Norm] | None  # Qwen3's query and key norms
    out: Columns
    mlp_norm: Norm
    gate_up: Columns
    down: Columns
    number: int  # index in the KV cache
    head: int  # width of a head
    spec: AttentionSpec

    def forward(self, x_nD: Tensor, cos: Tensor, signed_sin: Tensor, plan: AttentionPlan) -> Tensor:
        """Apply the layer to the residual stream, [n, D] → [n, D]."""
        rows, columns = len(x_nD), self.input_norm(x_nD).t()
        q, k, v = [part.t().reshape(rows, -1, self.head) for part in self.qkv(columns)]
        if self.qk_norms is not None:
            q, k = self.qk_norms[0](q), self.qk_norms[1](k)
        q, k = rotate_pairs(q, k, cos, signed_sin)
        attended = plan.attend(self.number, q, k, v, self.spec)
        x_nD = x_nD + self.out(attended.reshape(rows, -1).t())[0].t()
        gate, up = self.gate_up(self.mlp_norm(x_nD).t())
        return x_nD + self.down(silu(gate).mul_(up))[0].t()


@dataclass(frozen=True, slots=True, eq=False)
class DecodePass:
    """Decoder forward for one new token per row, from :func:`find_decode_pass`."""

    decoder: Any
    layers: Sequence[_Layer]
    norm: Norm

    def hidden_states(self, ids: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
        """Return the hidden states for one new token per row, [n, D]."""
        x = self.decoder.embed_tokens(ids)
        cos, signed_sin = rotary_factors(self.decoder, x, positions)
        for layer in self.layers:
            x = layer.forward(x, cos, signed_sin, plan)
        return self.norm(x)


class _Adapters:
    """Adapters of the rows' policies; layers with the same ranks and scales share one mask."""

    def __init__(self, policies: Sequence[str | None]) -> None:
        self.policies, self.distinct = policies, list(dict.fromkeys(policies))
        self._masks: dict[tuple[tuple[str | None, int, float], ...], Tensor] = {}

    def of_layer(self, layer: MultiLoraLinear) -> tuple[Adapter | None, tuple[Tensor, Tensor, Tensor] | None]:
        """Return a layer's adapter if there is one policy, else the stacked A [Σr, in], B [out, Σr], mask [Σr, n]."""
        found = [(policy, layer.get_adapter(policy)) for policy in self.distinct]
        if len(found) == 1:
            return found[0][1], None
        present = [(policy, adapter) for policy, adapter in found if adapter is not None]
        if not present:
            return None, None
        key = tuple((policy, len(adapter.a), adapter.scale) for policy, adapter in present)
        if key not in self._masks:
            self._masks[key] = scale_mask(self.policies, present, layer.base.weight.device).t()
        a = torch.cat([adapter.a for _, adapter in present])
        b = torch.cat([adapter.b for _, adapter in present], dim=1)
        return None, (a, b, self._masks[key])


def _find_layer(layer: Any, adapters: _Adapters, packed: PackedWeights) -> _Layer | None:
    attention, mlp = layer.self_attn, layer.mlp
    groups = (
        (attention.q_proj, attention.k_proj, attention.v_proj),
        (attention.o_proj,),
        (mlp.gate_proj, mlp.up_proj),
        (mlp.down_proj,),
    )
    found = [_find_columns(modules, adapters, packed) for modules in groups]
    qkv, out, gate_up, down = found
    if None in found or not isinstance(mlp.act_fn, SiLUActivation | nn.SiLU):
        return None
    norms = None
    if hasattr(attention, "q_norm"):
        norms = _find_norm(attention.q_norm), _find_norm(attention.k_norm)
    window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
    return _Layer(
        _find_norm(layer.input_layernorm), qkv, norms, out, _find_norm(layer.post_attention_layernorm),  # type: ignore[arg-type]
        gate_up, down, attention.layer_idx, attention.head_dim, AttentionSpec(attention.scaling, window),  # type: ignore[arg-type]
    )  # fmt: skip


def _find_norm(norm: Any) -> Norm:
    shape, weight, epsilon = (len(norm.weight),), norm.weight, norm.variance_epsilon
    return lambda x: rms_norm(x, shape, weight, epsilon)


def _find_columns(modules: Sequence[nn.Module], adapters: _Adapters, packed: PackedWeights) -> Columns | None:
    """Return linear layers on the same rows, with their adapters, as one function.

    Returns None if a layer is trained or not a plain one.
    """
    bases = [module.base if isinstance(module, MultiLoraLinear) else module for module in modules]
    linears = [base for base in bases if type(base) is nn.Linear and not base.weight.requires_grad]
    if len(linears) < len(bases):
        return None
    frozen = _frozen_columns(linears, packed)
    found = [_find_addition(module, adapters) if isinstance(module, MultiLoraLinear) else None for module in modules]
    additions = [(number, add) for number, add in enumerate(found) if add is not None]

    def apply(x: Tensor) -> list[Tensor]:
        outputs = frozen(x)
        for number, add in additions:
            add(x, outputs[number])
        return outputs

    return apply if additions else frozen


def _find_addition(module: MultiLoraLinear, adapters: _Adapters) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Return the function that adds a layer's adapters, given its input, to its output; None without adapters."""
    adapter, stack = adapters.of_layer(module)
    if stack is not None:
        a, b, mask = stack
        return lambda x, out: out.addmm_(b, torch.mm(a, x).mul_(mask))
    if adapter is not None:
        a, b, scale = adapter.a, adapter.b, adapter.scale
        return lambda x, out: out.addmm_(b, torch.mm(a, x), alpha=scale)
    return None


def _frozen_columns(bases: Sequence[nn.Linear], packed: PackedWeights) -> Columns:
    """Return frozen layers as one function: one product where their weights can be packed together."""
    weights = [base.weight for base in bases]
    biases = [bias for base in bases if (bias := _bias(base)) is not None]
    weight = packed.pack(weights) if len(biases) in (0, len(bases)) else None
    if weight is None:
        each = [_stored_columns(base) for base in bases]
        return lambda x: [product(x) for product in each]
    sizes, bias = [len(stored) for stored in weights], torch.cat(biases) if biases else None
    return lambda x: list(multiply_columns(weight, x, bias).split(sizes))


def _bias(base: nn.Linear) -> Tensor | None:
    return base.bias


def _stored_columns(base: nn.Linear) -> Callable[[Tensor], Tensor]:
    weight, bias = base.weight, _bias(base)
    if bias is None and not uses_onednn(weight):
        return lambda x: torch.mm(weight, x)
    return lambda x: multiply_columns(weight, x, bias)
