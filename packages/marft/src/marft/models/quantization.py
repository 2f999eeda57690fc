"""Linear layers with 4-bit weights, dequantized for each product.

A :class:`QuantizedLinear` keeps packed weights and their constants. Its ``weight`` is computed on every access, so that
each forward works on it. A product dequantizes the matrix, multiplies and releases it. The backward pass dequantizes
again: autograd saves no dequantized matrix. Outputs and gradients are those of a layer with the dequantized weights.

Formats:

- NF4 (Dettmers et al. 2023, QLoRA): a weight is one of 16 values times the largest magnitude of its block;
  bitsandbytes quantizes and dequantizes.
- Groups of integers, as GPTQ and AWQ save them: ``w = (code - zero) · scale``, with a zero and a scale for each output
  and group of inputs.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from marft.common.errors import UserError
from marft.common.packages import install_command
from marft.models.devices import AutogradContext

BITS = 4
MAX_CODE = 2**BITS - 1
BitsAndBytesType = Literal["nf4", "fp4"]


class QuantizedLinear(nn.Linear, ABC):
    """Frozen linear layer with packed weights.

    Args:
        bias: bias [out], or None.
        dtype: compute dtype of the layer, and the type of its dequantized weights.
    """

    def __init__(self, in_features: int, out_features: int, bias: Tensor | None, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)  # without nn.Linear's own weight
        self.in_features, self.out_features, self.dtype = in_features, out_features, dtype
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach(), requires_grad=False))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Dequantized weight, [out, in], computed on every access."""
        return self.dequantize()

    @property
    def device(self) -> torch.device:
        """Device of the packed weights."""
        return next(self.buffers()).device

    @abstractmethod
    def dequantize(self) -> Tensor:
        """Return the dequantized weight, [out, in]."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer in its compute dtype, [..., in] → [..., out]."""
        x = x.to(self.dtype)
        if torch.is_grad_enabled() and x.requires_grad:
            out: Tensor = _QuantizedProduct.apply(x, self)  # type: ignore[no-untyped-call]
            return out
        return linear(x, self.weight, None if self.bias is None else self.bias.to(self.dtype))


class _QuantizedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return linear(x, layer.weight, None if layer.bias is None else layer.bias.to(layer.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ ctx.layer.weight, None


class BitsAndBytesLinear(QuantizedLinear):
    """Linear layer in a 4-bit format of bitsandbytes: NF4, or FP4.

    Args:
        codes: two codes per byte, row by row.
        absmax: largest magnitude of each block: float32, or codes that ``nested`` explains (double quantization).
        values: values of the 16 codes.
        block_size: weights per block.
        nested: ``absmax``, ``values`` and ``offset`` of the codes in ``absmax``; empty without double quantization.
        nested_block_size: magnitudes per block of ``nested``.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        bias: Tensor | None,
        dtype: torch.dtype,
        *,
        codes: Tensor,
        absmax: Tensor,
        values: Tensor,
        quant_type: BitsAndBytesType,
        block_size: int,
        nested: Mapping[str, Tensor],
        nested_block_size: int,
    ) -> None:
        super().__init__(shape[1], shape[0], bias, dtype)
        self.quant_type, self.block_size, self.nested_block_size = quant_type, block_size, nested_block_size
        self.register_buffer("codes", codes.reshape(-1, 1))
        self.register_buffer("absmax", absmax)
        self.register_buffer("values", values)
        for name in ("absmax", "values", "offset") if nested else ():
            self.register_buffer(f"nested_{name}", nested[name])
        self.is_nested = bool(nested)

    @classmethod
    def from_weight(
        cls, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, block_size: int, double_quantization: bool
    ) -> Self:
        """Quantize a weight [out, in] to NF4 on its device.

        Raises:
            UserError: bitsandbytes is not installed.
        """
        codes, state = bitsandbytes_functions().quantize_4bit(
            weight.float().contiguous(),
            blocksize=block_size,
            compress_statistics=double_quantization,
            quant_type="nf4",
        )
        nested: dict[str, Tensor] = {}
        if double_quantization:
            nested = {"absmax": state.state2.absmax, "values": state.state2.code, "offset": state.offset}
        return cls(
            (weight.shape[0], weight.shape[1]),
            bias,
            dtype,
            codes=codes,
            absmax=state.absmax,
            values=state.code,
            quant_type="nf4",
            block_size=block_size,
            nested=nested,
            nested_block_size=state.state2.blocksize if double_quantization else 0,
        )

    def dequantize(self) -> Tensor:
        """Return the dequantized weight, [out, in].

        The shape that bitsandbytes gets has no block over the end of a row: its 0.50 reads wrong magnitudes for such
        blocks on a CPU.
        """
        functions, count = bitsandbytes_functions(), self.out_features * self.in_features
        rows = (count // self.block_size, self.block_size) if count % self.block_size == 0 else (count,)
        nested = None
        if self.is_nested:
            nested = functions.QuantState(
                absmax=self.nested_absmax,
                code=self.nested_values,
                blocksize=self.nested_block_size,
                dtype=torch.float32,
            )
        state = functions.QuantState(
            absmax=self.absmax,
            shape=torch.Size(rows),
            code=self.values,
            blocksize=self.block_size,
            quant_type=self.quant_type,
            dtype=torch.float32 if self.dtype == torch.float64 else self.dtype,
            offset=self.nested_offset if self.is_nested else None,
            state2=nested,
        )
        weight: Tensor = functions.dequantize_4bit(self.codes, state)
        return weight.view(self.out_features, self.in_features).to(self.dtype)


class GroupedInt4Linear(QuantizedLinear):
    """Linear layer with unsigned 4-bit codes, and a zero and a scale for each output and group of inputs.

    Args:
        codes: codes of two neighboring inputs per byte, the first in the low bits, [out, in / 2].
        zeros: zeros in codes, [out, groups].
        scales: scales, [out, groups].
        order: position of each input among the codes, [in]; None if the codes are in the order of the inputs.
    """

    codes: Tensor
    zeros: Tensor
    scales: Tensor
    order: Tensor | None

    def __init__(
        self,
        bias: Tensor | None,
        dtype: torch.dtype,
        *,
        codes: Tensor,
        zeros: Tensor,
        scales: Tensor,
        order: Tensor | None,
    ) -> None:
        super().__init__(2 * codes.shape[1], codes.shape[0], bias, dtype)
        self.register_buffer("codes", codes)
        self.register_buffer("zeros", zeros)
        self.register_buffer("scales", scales)
        self.register_buffer("order", order)

    def dequantize(self) -> Tensor:
        """Return the dequantized weight, [out, in]."""
        weight = torch.empty(self.out_features, self.in_features, dtype=self.dtype, device=self.codes.device)
        weight[:, ::2] = self.codes & MAX_CODE
        weight[:, 1::2] = self.codes >> BITS
        groups = weight.view(self.out_features, self.scales.shape[1], -1)  # [out, groups, inputs per group]
        groups.sub_(self.zeros[..., None]).mul_(self.scales[..., None])
        return weight if self.order is None else weight.index_select(1, self.order)


def bitsandbytes_functions() -> Any:
    """Return the module ``bitsandbytes.functional``.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    try:
        return importlib.import_module("bitsandbytes.functional")
    except ImportError as error:
        raise UserError(
            f"4-bit weights in NF4 need the package bitsandbytes, which is not installed: {install_command('qlora')}"
        ) from error


def count_quantized_weights(model: nn.Module) -> int:
    """Return the number of weights in 4 bits."""
    layers = (module for module in model.modules() if isinstance(module, QuantizedLinear))
    return sum(layer.in_features * layer.out_features for layer in layers)


def replace_by_dequantized(model: nn.Module) -> None:
    """Replace each quantized layer by a linear layer with its dequantized weight."""
    names = [name for name, module in model.named_modules() if isinstance(module, QuantizedLinear)]
    for name in names:  # frees each layer before the next
        layer: Any = model.get_submodule(name)
        model.set_submodule(name, dequantized_layer(layer))


def dequantized_layer(layer: QuantizedLinear) -> nn.Linear:
    """Return a frozen linear layer with a quantized layer's dequantized weight."""
    plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
    plain.weight, plain.bias = nn.Parameter(layer.weight, requires_grad=False), layer.bias
    return plain
