"""Weights that are held in half precision and multiplied in float32, where a processor's half precision is the slower.

Few processors multiply bfloat16 numbers faster than float32 ones: those with AMX do. With AVX512-BF16 alone the
instruction takes twice as long as the two float32 ones in whose place it stands (Emerald Rapids), and with AVX2 there
is none. A frozen base in bfloat16 still takes half the memory there, so it is held in it, and each of its matrices is
made float32 for as long as it is multiplied with many rows: which costs little beside the product. Nothing else is
rounded then. While few rows decode, bringing weights from memory is what takes the time: bfloat16 halves it, so there
the instruction is used where there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from marft.models.devices import on_host

if TYPE_CHECKING:
    from marft.models.backbone import Backbone

FEW_ROWS = 32  # that decode at a time: with more, products cost more than bringing weights


def hold_in_half(backbone: Backbone) -> None:
    """Have a frozen half-precision base compute in float32, where that is faster: on x86 without AMX.

    The matrices of its layers stay as they are; embeddings, head, norms and biases become float32. Bases whose layers
    run as modules of transformers stay as they are altogether.
    """
    if backbone.half and on_host(backbone.head.weight) and backbone.fused and not multiplies_halves_faster():
        matrices = {id(layer.weight) for layer in backbone.decoder.layers.modules() if isinstance(layer, nn.Linear)}
        for parameter in backbone.model.parameters():
            if id(parameter) not in matrices:
                parameter.data = parameter.data.float()


def few_times_half(rows: int) -> bool:
    """Whether half-precision weights are multiplied as they are with so many rows: here, in this processor."""
    return rows <= FEW_ROWS and bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def multiplied_as(weight: Tensor) -> torch.dtype:
    """The precision that products with a matrix are computed in: its own, or float32 where that is half of it."""
    return torch.promote_types(weight.dtype, torch.float32)


def multiplies_halves_faster() -> bool:
    """Whether this processor multiplies half-precision numbers faster than float32 ones: on x86 it takes AMX."""
    has = torch.cpu.get_capabilities()
    return has["architecture"] != "x86_64" or bool(has.get("amx_bf16"))
