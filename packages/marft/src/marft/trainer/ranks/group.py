"""Rank groups over ``torch.distributed``.

Objects and decisions use gloo. Gradients use NCCL on GPUs, else gloo.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from marft.models.dtensors import is_sharded
from marft.models.packed_rows import split_batches

T = TypeVar("T")
HOST = torch.device("cpu")
NO_PLACEMENT: Mapping[str, Sequence[int]] = MappingProxyType({})
INTERFACE = "GLOO_SOCKET_IFNAME"
BUCKET = 2**23  # elements per all-reduce: 32 MiB


class RankSubgroup:
    """Process group in which this process is ``rank`` of ``count``."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.process_group, self.device = group, device
        self.rank, self.count = group.rank(), group.size()

    def gather(self, value: T) -> list[T]:
        """Gather a value from every rank, in rank order."""
        values: list[T | None] = [None] * self.count
        dist.all_gather_object(values, value, self.process_group)
        return values  # type: ignore[return-value]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its sum over ranks, in buckets and in parameter order.

        Gradients of sharded parameters are already sums.
        """
        unsharded = [parameter for parameter in parameters if not is_sharded(parameter)]
        for bucket in split_batches(unsharded, lambda parameter: parameter.numel(), BUCKET):
            flat = torch.cat(
                [p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in bucket]
            ).detach()
            dist.all_reduce(flat, group=self.process_group)
            for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                parameter.grad = part.view_as(parameter)

    def on(self, base: str) -> RankSubgroup | None:  # noqa: ARG002
        """Return this group, for every base model."""
        return self

    def mesh(self) -> DeviceMesh:
        """Return a one-dimensional device mesh of the ranks, for sharding."""
        return DeviceMesh.from_group(self.process_group, self.device.type)


class RankGroup(RankSubgroup):
    """All :class:`~marft.trainer.ranks.interface.Ranks` of a run, with a process each; call ``close`` at the end.

    Args:
        init_method: rendezvous address, equal on all ranks. It is the path of a file that does not exist yet, or
            tcp://host:port of an open store for ranks on several machines.
        rank: index of this rank.
        count: number of ranks.
        device: device of this rank.
        timeout_seconds: timeout of collective operations, in seconds.
        placement: ranks of each base model that only some ranks train.

    Raises:
        RuntimeError: (also from all collective operations) another rank has ended, or did not answer in time.
    """

    def __init__(
        self,
        init_method: str,
        rank: int,
        count: int,
        device: torch.device,
        timeout_seconds: float,
        placement: Mapping[str, Sequence[int]] = NO_PLACEMENT,
    ) -> None:
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        try:
            with _use_interface(init_method):
                dist.init_process_group(
                    "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                    store=_create_store(init_method, count, timeout_seconds),
                    rank=rank,
                    world_size=count,
                    timeout=timedelta(seconds=timeout_seconds),
                )
                assert dist.group.WORLD is not None
                super().__init__(dist.group.WORLD, device)
                self._subgroups = self._create_subgroups(placement, timeout_seconds)
        except BaseException:
            self.close()
            raise

    def _create_subgroups(
        self, placement: Mapping[str, Sequence[int]], timeout_seconds: float
    ) -> dict[str, RankSubgroup | None]:
        """Return the ranks per base model; every rank creates the groups in the same order."""
        by_base: dict[str, RankSubgroup | None] = {}
        by_ranks: dict[tuple[int, ...], RankSubgroup | None] = {}
        for name, ranks in sorted(placement.items()):
            members = tuple(sorted(ranks))
            if members not in by_ranks:
                group = dist.new_group(list(members), timeout=timedelta(seconds=timeout_seconds))
                by_ranks[members] = RankSubgroup(group, self.device) if self.rank in members else None
            by_base[name] = by_ranks[members]
        return by_base

    def on(self, base: str) -> RankSubgroup | None:
        """Return the ranks that train a base model; None if this rank does not."""
        return self._subgroups.get(base, self)

    def mesh_of(self, base: str) -> DeviceMesh | None:
        """Return a device mesh of the ranks that train a base model, for sharding."""
        subgroup = self.on(base)
        return None if subgroup is None else subgroup.mesh()

    def send(self, value: object, rank: int) -> None:
        """Send an object to a rank in :meth:`receive`."""
        dist.send_object_list([value], rank, device=HOST)

    def receive(self, rank: int) -> Any:
        """Receive an object from a rank."""
        values: list[Any] = [None]
        dist.recv_object_list(values, rank, device=HOST)
        return values[0]

    def close(self) -> None:
        """Leave the group; waiting ranks get an error. Repeated calls have no effect."""
        if dist.is_initialized():
            dist.destroy_process_group()


def open_store(host: str) -> tuple[Any, str]:
    """Open a rendezvous store for ranks on several machines → store, address.

    The store must stay referenced while the ranks train.
    """
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    return store, f"tcp://{host}:{store.port}"


def _create_store(init_method: str, count: int, timeout_seconds: float) -> Any:
    if not init_method.startswith("tcp://"):
        return dist.FileStore(init_method, count)  # type: ignore[attr-defined]
    address = urlsplit(init_method)
    assert address.hostname is not None
    assert address.port is not None
    wait = timedelta(seconds=timeout_seconds)
    return dist.TCPStore(address.hostname, address.port, is_master=False, timeout=wait)  # type: ignore[attr-defined]


@contextmanager
def _use_interface(init_method: str) -> Iterator[None]:
    """Select the network interface of the rendezvous, and no other, to exclude foreign connections.

    An existing environment variable takes precedence. The variable is removed afterwards, because a later rendezvous
    may use another interface.
    """
    if not sys.platform.startswith("linux") or INTERFACE in os.environ:
        yield
        return
    os.environ[INTERFACE] = find_interface(init_method)
    try:
        yield
    finally:
        del os.environ[INTERFACE]


def find_interface(init_method: str) -> str:
    """Return the name of the network interface that reaches the rendezvous address; Linux only."""
    import fcntl

    if not init_method.startswith("tcp://"):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.connect((urlsplit(init_method).hostname, 9))  # no packet is sent
        own_address = socket.inet_aton(end.getsockname()[0])
        for _, name in socket.if_nameindex():
            try:
                address = fcntl.ioctl(end, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR, netdevice(7)
            except OSError:  # interface without an address
                continue
            if address[20:24] == own_address:
                return name
    return "lo"
