"""Tensors of which each rank holds a part: this rank's, the whole, and parts of what is whole.

What is asked of them they answer themselves, so that nothing of ``torch.distributed`` is imported where one process has
all.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def in_parts(tensor: Tensor) -> bool:
    """Whether ranks hold a part of it each (a ``DTensor``)."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of it, in the same memory; a tensor that is whole is held whole."""
    return tensor.detach().to_local() if in_parts(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """All of it: all ranks that hold a part of it make this call together."""
    found: Tensor = tensor.full_tensor() if in_parts(tensor) else tensor  # type: ignore[attr-defined]
    return found


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """What is whole, as ``like`` is held: in parts, of which this rank takes its own without asking the others."""
    if not in_parts(like) or in_parts(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    held: Any = like
    return distribute_tensor(tensor.to(held.device), held.device_mesh, held.placements, src_data_rank=None)
