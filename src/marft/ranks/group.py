"""The processes that learn together, over ``torch.distributed``: objects and decisions travel over gloo, gradients too,
or over NCCL where they lie on GPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from marft.models.batches import in_batches
from marft.models.parts import in_parts

T = TypeVar("T")
BUCKET = 2**23  # numbers that are summed in one collective: 32 MiB


class Group:
    """One of the :class:`~marft.learning.ranks.Ranks`, in a process of its own. Close it.

    Args:
        meeting: a file that does not exist yet, the same for all, by which they find each other.
        patience: seconds that one waits for the others, whatever is done together.

    Raises:
        RuntimeError: (of all that is done together) another one has gone, or was not heard of in time.
    """

    def __init__(self, meeting: Path, rank: int, count: int, device: torch.device, patience: float) -> None:
        self.rank, self.count, self.device = rank, count, device
        if sys.platform.startswith("linux"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this machine, and nobody else is to join
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=dist.FileStore(str(meeting), count),
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=patience),
        )

    def gather(self, mine: T) -> list[T]:
        """What every rank gives, by rank."""
        found: list[T | None] = [None] * self.count
        dist.all_gather_object(found, mine)
        return found  # type: ignore[return-value]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Each gradient becomes its sum over ranks, many of them in one collective, in the parameters' order. Those of
        parameters that lie in parts are sums already."""
        wanted = [parameter for parameter in parameters if not in_parts(parameter)]
        for bucket in in_batches(wanted, lambda parameter: parameter.numel(), BUCKET):
            flat = torch.cat(
                [p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in bucket]
            ).detach()
            dist.all_reduce(flat)
            for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                parameter.grad = part.view_as(parameter)

    def mesh(self) -> DeviceMesh:
        """All ranks in one dimension, for what is held in parts."""
        return init_device_mesh(self.device.type, (self.count,))

    def close(self) -> None:
        """Leave. Whoever waits for this rank hears of it."""
        dist.destroy_process_group()
