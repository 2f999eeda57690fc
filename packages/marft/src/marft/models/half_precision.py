"""Half precision: float32 products and residual stream where they pay off, and float32 master weights.

*Storage.* Few CPUs multiply bfloat16 faster than float32: those with AMX. With only AVX512-BF16, the instruction takes
twice as long as the two float32 instructions that it replaces (Emerald Rapids). AVX2 has no such instruction. A frozen
bfloat16 base still takes half the memory, so its weights stay in bfloat16. For a product with many rows, each matrix is
converted to float32, which is cheap compared to the product. Nothing else is rounded then. When few rows decode,
loading the weights from memory takes most of the time, and bfloat16 halves it. In that case the bfloat16 instruction is
used if available.

*Residual stream.* Every layer adds to the residual stream. Rounding it each time causes a large part of the difference
between decoding and scoring. In bfloat16, a model with 30 layers would round its largest numbers 60 times. Inputs are
rounded where they enter a product with half-precision weights. Norms and rotary embeddings are computed in float32.

*Training* (Micikevicius et al. 2018). A training step changes a weight by far less than half precision can represent.
So each trained weight has a float32 master. Gradients accumulate on the master, the optimizer updates it, and the model
computes with its rounded value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from marft.models.devices import is_on_cpu
from marft.models.dtensors import local_shard, shard_like
from marft.models.quantization import QuantizedLinear

if TYPE_CHECKING:
    from marft.models.backbone import Backbone

MAX_DECODE_ROWS = 32  # maximum rows in decoding; with more, products cost more than loading the weights


def store_in_half(backbone: Backbone) -> None:
    """Convert a frozen half-precision base for float32 computation where faster: on x86 without AMX.

    The layer matrices keep their type; embeddings, head, norms and biases become float32. A base that runs on
    transformers' modules stays unchanged.
    """
    if backbone.is_half and is_on_cpu(backbone.head.weight) and backbone.fused and not has_fast_half():
        linear_layers = [layer for layer in backbone.decoder.layers.modules() if isinstance(layer, nn.Linear)]
        matrices = {id(layer.weight) for layer in linear_layers if not isinstance(layer, QuantizedLinear)}
        for parameter in backbone.model.parameters():
            if id(parameter) not in matrices:
                parameter.data = parameter.data.float()


def uses_half_products(rows: int) -> bool:
    """Return whether products with this number of rows use half-precision weights directly on this CPU."""
    return rows <= MAX_DECODE_ROWS and bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def compute_dtype(weight: Tensor | QuantizedLinear) -> torch.dtype:
    """Return the compute dtype for a matrix, or for a quantized layer: its own, or float32 for half precision."""
    return torch.promote_types(weight.dtype, torch.float32)


def has_fast_half() -> bool:
    """Return whether this CPU multiplies half precision faster than float32; on x86, AMX is required."""
    capabilities = torch.cpu.get_capabilities()
    return capabilities["architecture"] != "x86_64" or bool(capabilities.get("amx_bf16"))


def use_fp32_residual(decoder: nn.Module, is_enabled: Callable[[], bool]) -> None:
    """Register hooks for a float32 residual stream that starts at the embeddings.

    Modules with weight matrices receive their inputs in their own precision.

    Args:
        is_enabled: whether to use the float32 stream, evaluated at every forward.
    """

    def cast_output(_: nn.Module, __: object, out: Tensor) -> Tensor:
        return out.float() if is_enabled() else out

    def cast_inputs(module: nn.Module, inputs: tuple[object, ...]) -> tuple[object, ...] | None:
        return tuple(_cast_to_weight(_weight_matrix(module), x) for x in inputs) if is_enabled() else None

    for module in decoder.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(cast_output)
        elif _weight_matrix(module) is not None:
            module.register_forward_pre_hook(cast_inputs)


def _weight_matrix(module: nn.Module) -> Tensor | None:
    """Return a module's own weight matrix, if any: linear layer, router or experts; or the weight of a layer norm.

    torch computes a layer norm only in the precision of its weight.
    """
    if isinstance(module, nn.LayerNorm):
        return module.weight
    return next((weight for weight in module.parameters(recurse=False) if weight.dim() > 1), None)


def _cast_to_weight(matrix: Tensor | None, x: object) -> object:
    """Convert ``x`` to the dtype of a matrix."""
    return x.to(matrix.dtype) if matrix is not None and isinstance(x, Tensor) and x.is_floating_point() else x


class MasterWeights:
    """Float32 master weights for a model. After every update, call :meth:`copy_to_model`.

    Args:
        weights: half-precision weights by name. If the weights are sharded, the masters are sharded too.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter]) -> None:
        self._weights = dict(weights)
        self.parameters = {name: nn.Parameter(weight.detach().float()) for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            weight.register_post_accumulate_grad_hook(partial(_move_gradient, self.parameters[name]))

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Copy the masters to the model's weights, rounded."""
        model_weights = [local_shard(weight) for weight in self._weights.values()]
        torch._foreach_copy_(model_weights, [local_shard(master) for master in self.parameters.values()])

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Set the masters to full weights, and the model's weights to their rounded values."""
        for name, master in self.parameters.items():
            local_shard(master).copy_(local_shard(shard_like(weights[name], master)))
        self.copy_to_model()


def _move_gradient(master: nn.Parameter, weight: Tensor) -> None:
    """Add the gradient from one micro-batch to the master's gradient."""
    grad, weight.grad = weight.grad, None
    assert grad is not None
    if master.grad is None:
        master.grad = grad.float()
    else:
        master.grad.add_(grad)
