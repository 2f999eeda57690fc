"""Sharded tensors (DTensors): local shard, full tensor, and sharding of full tensors.

The functions use only methods of the tensors, so a single-process run does not import ``torch.distributed``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def in_parts(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded over ranks (a ``DTensor``)."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard in the same memory; an unsharded tensor is returned unchanged."""
    return tensor.detach().to_local() if in_parts(tensor) else tensor  # type: ignore[attr-defined]


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor; a collective call for every rank with a shard."""
    found: Tensor = tensor.full_tensor() if in_parts(tensor) else tensor  # type: ignore[attr-defined]
    return found


def part_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor like ``like``; each rank takes its own shard without communication."""
    if not in_parts(like) or in_parts(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    held: Any = like
    return distribute_tensor(tensor.to(held.device), held.device_mesh, held.placements, src_data_rank=None)
