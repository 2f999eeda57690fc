"""The processes that learn together, over ``torch.distributed``: objects and decisions travel over gloo, gradients too,
or over NCCL where they lie on GPUs."""

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
BUCKET = 2**23  # numbers that are summed in one collective: 32 MiB


class Some:
    """Ranks in one process group, in which this one is ``rank`` of ``count``."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.process_group, self.device = group, device
        self.rank, self.count = group.rank(), group.size()

    def gather(self, mine: T) -> list[T]:
        """What every rank gives, by rank."""
        found: list[T | None] = [None] * self.count
        dist.all_gather_object(found, mine, self.process_group)
        return found  # type: ignore[return-value]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Each gradient becomes its sum over ranks, many of them in one collective, in the parameters' order. Those of
        parameters that lie in parts are sums already."""
        wanted = [parameter for parameter in parameters if not in_parts(parameter)]
        for bucket in in_batches(wanted, lambda parameter: parameter.numel(), BUCKET):
            flat = torch.cat(
                [p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in bucket]
            ).detach()
            dist.all_reduce(flat, group=self.process_group)
            for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                parameter.grad = part.view_as(parameter)

    def on(self, base: str) -> Some | None:  # noqa: ARG002
        """They learn together on whatever they learn."""
        return self

    def mesh(self) -> DeviceMesh:
        """They in one dimension, for what is held in parts."""
        return DeviceMesh.from_group(self.process_group, self.device.type)


class Group(Some):
    """All :class:`~marft.trainer.rank_group.Ranks` of a run, each in a process of its own. Close it.

    Args:
        meeting: a file that does not exist yet, the same for all, by which they find each other; or tcp://host:port of
            a store that is open, where they are on several machines.
        patience: seconds that one waits for the others, whatever is done together.
        placed: the ranks that learn on a base model, of models that not all learn on.

    Raises:
        RuntimeError: (of all that is done together) another one has gone, or was not heard of in time.
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
        """Those that learn on each model; all ranks make all groups, in one order."""
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
        """Those that learn on a base model; None where this one does not."""
        return self._on.get(base, self)

    def mesh_of(self, base: str) -> DeviceMesh | None:
        """Those that learn on a base model, for what they hold in parts."""
        here = self.on(base)
        return None if here is None else here.mesh()

    def send(self, what: object, rank: int) -> None:
        """Have one rank :meth:`receive` something."""
        dist.send_object_list([what], rank, device=HOST)

    def receive(self, rank: int) -> Any:
        """What a rank sends."""
        found: list[Any] = [None]
        dist.recv_object_list(found, rank, device=HOST)
        return found[0]

    def close(self) -> None:
        """Leave. Whoever waits for this rank hears of it. Once is enough."""
        if dist.is_initialized():
            dist.destroy_process_group()


def open_store(host: str) -> tuple[Any, str]:
    """Where ranks on several machines meet → it, for as long as they learn together, and its address."""
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
    """Meet on the interface that leads to the meeting, and on no other, for nobody else is to join; unless the
    environment says another. A later meeting may be elsewhere."""
    if not sys.platform.startswith("linux") or INTERFACE in os.environ:
        yield
        return
    os.environ[INTERFACE] = interface_to(meeting)
    try:
        yield
    finally:
        del os.environ[INTERFACE]


def interface_to(meeting: str) -> str:
    """The network interface of this machine, which runs Linux, by which it reaches where ranks meet."""
    import fcntl

    if not meeting.startswith("tcp://"):
        return "lo"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.connect((urlsplit(meeting).hostname, 9))  # sends nothing
        mine = socket.inet_aton(end.getsockname()[0])
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(end, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR, netdevice(7)
            except OSError:  # it has no address
                continue
            if found[20:24] == mine:
                return name
    return "lo"
