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

from marft.models.batches import in_batches
from marft.models.parts import in_parts

T = TypeVar("T")
HOST = torch.device("cpu")
NOWHERE: Mapping[str, Sequence[int]] = MappingProxyType({})
INTERFACE = "GLOO_SOCKET_IFNAME"
BUCKET = 2**23  # elements per all-reduce: 32 MiB


class Some:
    """Process group in which this process is ``rank`` of ``count``."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.process_group, self.device = group, device
        self.rank, self.count = group.rank(), group.size()

    def gather(self, mine: T) -> list[T]:
        """Gather a value from every rank, in rank order."""
        found: list[T | None] = [None] * self.count
        dist.all_gather_object(found, mine, self.process_group)
        return found  # type: ignore[return-value]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its sum over ranks, in buckets and in parameter order.

        Gradients of sharded parameters are already sums.
        """
        wanted = [parameter for parameter in parameters if not in_parts(parameter)]
        for bucket in in_batches(wanted, lambda parameter: parameter.numel(), BUCKET):
            flat = torch.cat(
                [p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in bucket]
            ).detach()
            dist.all_reduce(flat, group=self.process_group)
            for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                parameter.grad = part.view_as(parameter)

    def on(self, base: str) -> Some | None:  # noqa: ARG002
        """Return this group, for every base model."""
        return self

    def mesh(self) -> DeviceMesh:
        """Return a one-dimensional device mesh of the ranks, for sharding."""
        return DeviceMesh.from_group(self.process_group, self.device.type)


class Group(Some):
    """Every :class:`~marft.trainer.rank_group.Ranks` member in a run, with a process each; call ``close`` at the end.

    Args:
        meeting: rendezvous address, equal on all ranks. It is the path of a file that does not exist yet, or
            tcp://host:port of an open store for ranks on several machines.
        rank: index of this rank.
        count: number of ranks.
        device: device of this rank.
        patience: timeout of collective operations, in seconds.
        placed: ranks of each base model that only some ranks train.

    Raises:
        RuntimeError: (also from all collective operations) another rank has ended, or did not answer in time.
    """

    def __init__(
        self, meeting: str, rank: int, count: int, device: torch.device, patience: float,
        placed: Mapping[str, Sequence[int]] = NOWHERE,
    ) -> None:  # fmt: skip
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        try:
            with _interface(meeting):
                dist.init_process_group(
                    "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                    store=_store(meeting, count, patience),
                    rank=rank,
                    world_size=count,
                    timeout=timedelta(seconds=patience),
                )
                assert dist.group.WORLD is not None
                super().__init__(dist.group.WORLD, device)
                self._on = self._divided(placed, patience)
        except BaseException:
            self.close()
            raise

    def _divided(self, placed: Mapping[str, Sequence[int]], patience: float) -> dict[str, Some | None]:
        """Return the ranks per base model; every rank creates the groups in the same order."""
        found: dict[str, Some | None] = {}
        some: dict[tuple[int, ...], Some | None] = {}
        for name, ranks in sorted(placed.items()):
            which = tuple(sorted(ranks))
            if which not in some:
                group = dist.new_group(list(which), timeout=timedelta(seconds=patience))
                some[which] = Some(group, self.device) if self.rank in which else None
            found[name] = some[which]
        return found

    def on(self, base: str) -> Some | None:
        """Return the ranks that train a base model; None if this rank does not."""
        return self._on.get(base, self)

    def mesh_of(self, base: str) -> DeviceMesh | None:
        """Return a device mesh of the ranks that train a base model, for sharding."""
        here = self.on(base)
        return None if here is None else here.mesh()

    def send(self, what: object, rank: int) -> None:
        """Send an object to a rank in :meth:`receive`."""
        dist.send_object_list([what], rank, device=HOST)

    def receive(self, rank: int) -> Any:
        """Receive an object from a rank."""
        found: list[Any] = [None]
        dist.recv_object_list(found, rank, device=HOST)
        return found[0]

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


def _store(meeting: str, count: int, patience: float) -> Any:
    if not meeting.startswith("tcp://"):
        return dist.FileStore(meeting, count)  # type: ignore[attr-defined]
    place = urlsplit(meeting)
    assert place.hostname is not None
    assert place.port is not None
    wait = timedelta(seconds=patience)
    return dist.TCPStore(place.hostname, place.port, is_master=False, timeout=wait)  # type: ignore[attr-defined]


@contextmanager
def _interface(meeting: str) -> Iterator[None]:
    """Select the network interface of the rendezvous, and no other, to exclude foreign connections.

    An existing environment variable takes precedence. The variable is removed afterwards, because a later rendezvous
    may use another interface.
    """
    if not sys.platform.startswith("linux") or INTERFACE in os.environ:
        yield
        return
    os.environ[INTERFACE] = interface_to(meeting)
    try:
        yield
    finally:
        del os.environ[INTERFACE]


def interface_to(meeting: str) -> str:
    """Return the name of the network interface that reaches the rendezvous address; Linux only."""
    import fcntl

    if not meeting.startswith("tcp://"):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.connect((urlsplit(meeting).hostname, 9))  # no packet is sent
        mine = socket.inet_aton(end.getsockname()[0])
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(end, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR, netdevice(7)
            except OSError:  # interface without an address
                continue
            if found[20:24] == mine:
                return name
    return "lo"
