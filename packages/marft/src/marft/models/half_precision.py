"""Half-precision storage with float32 products, for CPUs with slow half-precision products.

Few CPUs multiply bfloat16 faster than float32: those with AMX. With only AVX512-BF16, the instruction takes twice as
long as the two float32 instructions that it replaces (Emerald Rapids). AVX2 has no such instruction. A frozen bfloat16
base still takes half the memory, so its weights stay in bfloat16. For a product with many rows, each matrix is
converted to float32, which is cheap compared to the product. Nothing else is rounded then. When few rows decode,
loading the weights from memory takes most of the time, and bfloat16 halves it. In that case the bfloat16 instruction is
used if available.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from marft.models.devices import is_on_cpu

if TYPE_CHECKING:
    from marft.models.backbone import Backbone

MAX_DECODE_ROWS = 32  # maximum rows in decoding; with more, products cost more than loading the weights


def store_in_half(backbone: Backbone) -> None:
    """Convert a frozen half-precision base for float32 computation where faster: on x86 without AMX.

    The layer matrices keep their type; embeddings, head, norms and biases become float32. A base that runs on
    transformers' modules stays unchanged.
    """
    if backbone.is_half and is_on_cpu(backbone.head.weight) and backbone.fused and not has_fast_half():
        matrices = {id(layer.weight) for layer in backbone.decoder.layers.modules() if isinstance(layer, nn.Linear)}
        for parameter in backbone.model.parameters():
            if id(parameter) not in matrices:
                parameter.data = parameter.data.float()


def uses_half_products(rows: int) -> bool:
    """Return whether products with this number of rows use half-precision weights directly on this CPU."""
    return rows <= MAX_DECODE_ROWS and bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Return the compute dtype for a matrix: its own, or float32 for half precision."""
    return torch.promote_types(weight.dtype, torch.float32)


def has_fast_half() -> bool:
    """Return whether this CPU multiplies half precision faster than float32; on x86, AMX is required."""
    capabilities = torch.cpu.get_capabilities()
    return capabilities["architecture"] != "x86_64" or bool(capabilities.get("amx_bf16"))
