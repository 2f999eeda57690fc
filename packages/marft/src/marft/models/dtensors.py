"""Sharded tensors (DTensors): local shard, full tensor, and sharding of full tensors.

The functions use only methods of the tensors, so a single-process run does not import ``torch.distributed``.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded over ranks (a ``DTensor``)."""
    return hasattr(tensor, "full_tensor")


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's shard in the same memory; an unsharded tensor is returned unchanged."""
    return tensor.detach().to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor; a collective call for every rank with a shard."""
    full: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return full


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor like ``like``; each rank takes its own shard without communication."""
    if not is_sharded(like) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = like
    return distribute_tensor(tensor.to(sharded.device), sharded.device_mesh, sharded.placements, src_data_rank=None)
