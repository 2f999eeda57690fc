"""Replicated engine: each request goes to one replica, and every replica gets the weights."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Protocol

import torch

from marft.common import seeds
from marft.common.errors import UserError
from marft.common.processes.child_process import Command
from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, SamplingParams, VersionRange
from marft.config.interfaces.engine import Weights
from marft.inference.subprocess_engine.engine import SubprocessEngine

MAX_EXTRA_LOAD = 4  # maximum extra load of a task's own replica over the least loaded replica, in requests


class SaveFunction(Protocol):
    """Callback that saves weights to a folder."""

    def __call__(self, folder: Path, /) -> None: ...


class ReplicatedEngine:
    """Replicated engine. The sampled tokens for a key do not depend on the replica.

    Requests for one task go to the same replica, which already has the prompt in its prefix cache. If that replica is
    much busier, the least loaded replica takes the request.

    Args:
        engines: the replicas.
        saves: shared save functions, by policy name.
    """

    def __init__(self, engines: Sequence[SubprocessEngine], saves: Mapping[str, SharedSave]) -> None:
        self.engines, self.saves = engines, saves
        self._in_flight = [0] * len(engines)

    async def start(self) -> None:
        """Start every replica.

        Raises:
            RunError: a replica does not start.
        """
        await asyncio.gather(*(engine.start() for engine in self.engines))

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        """Sample one action with a replica; raises the replica's errors."""
        with self._select_replica(key) as engine:
            return await engine.sample(policy, prompt, sampling, key)

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: SamplingParams, key: ActionKey
    ) -> tuple[Choice, VersionRange]:
        """Choose with a replica; raises the replica's errors."""
        with self._select_replica(key) as engine:
            return await engine.choose(policy, prompt, options, sampling, key)

    def external_wait(self) -> AbstractContextManager[None]:
        """No-op: requests have no admission order."""
        return nullcontext()

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Save the policies once, then load the files in every replica."""
        for name in policies:
            self.saves[name].invalidate()
        await asyncio.gather(*(engine.publish(policies, version) for engine in self.engines))

    async def wait_idle(self) -> None:
        """Wait until every replica is idle."""
        await asyncio.gather(*(engine.wait_idle() for engine in self.engines))

    def version(self, policy: str) -> int:
        """Return the last published version for a policy."""
        return self.engines[0].version(policy)

    def usage(self) -> Mapping[str, float]:
        """Return the usage counters summed over replicas."""
        total = Counter[str]()
        for engine in self.engines:
            total.update(engine.usage())
        return dict(total)

    async def close(self) -> None:
        """Close every replica."""
        await asyncio.gather(*(engine.close() for engine in self.engines))

    @contextmanager
    def _select_replica(self, key: ActionKey) -> Iterator[SubprocessEngine]:
        """Select a replica and count the request in its load."""
        least_loaded = min(range(len(self.engines)), key=self._in_flight.__getitem__)
        preferred = seeds.derive_seed(0, key.stream, key.task) % len(self.engines)
        number = (
            preferred if self._in_flight[preferred] <= self._in_flight[least_loaded] + MAX_EXTRA_LOAD else least_loaded
        )
        self._in_flight[number] += 1
        try:
            yield self.engines[number]
        finally:
            self._in_flight[number] -= 1


class SharedSave:
    """Shared save for several engines: the first call saves the weights, later calls link the files."""

    def __init__(self, save: SaveFunction) -> None:
        self.save = save
        self._lock = Lock()
        self._folder: Path | None = None

    def invalidate(self) -> None:
        """Invalidate the saved weights after an update."""
        self._folder = None

    def __call__(self, folder: Path) -> None:
        """Save the weights to a folder, or link the files from an earlier call."""
        with self._lock:
            if self._folder is None or not self._folder.is_dir():
                self.save(folder)
                self._folder = folder
            else:
                shutil.copytree(self._folder, folder, copy_function=_link_or_copy)


def assign_devices(replicas: int, devices: Sequence[str], visible: Sequence[str]) -> list[str]:
    """Assign CUDA devices to each replica, in the format of CUDA_VISIBLE_DEVICES; "": the visible devices.

    >>> assign_devices(2, [], ["0", "1", "2", "3"])
    ['0,1', '2,3']
    >>> assign_devices(2, ["1", "3"], ["0", "1", "2", "3"])
    ['1', '3']

    Args:
        devices: devices to use; empty: all visible devices.
        visible: devices visible to this process.

    Raises:
        UserError: the devices cannot be divided evenly among the replicas.
    """
    available = devices or (visible if replicas > 1 else [])
    if len(available) % replicas:
        raise UserError(
            f"engine.replicas: {len(available)} GPUs ({', '.join(available)}) cannot be divided among {replicas} "
            "replicas; name others with engine.devices"
        )
    per_replica = len(available) // replicas
    return [",".join(available[number * per_replica : (number + 1) * per_replica]) for number in range(replicas)]


def visible_devices() -> list[str]:
    """Return the CUDA devices visible to this process."""
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    if variable:
        return [name for name in variable.split(",") if name][:count]
    return [f"{number}" for number in range(count)]


def set_visible_devices(command: Command, devices: str) -> Command:
    """Restrict a command's visible CUDA devices; "": no restriction."""
    return (lambda descriptor: ["env", f"CUDA_VISIBLE_DEVICES={devices}", *command(descriptor)]) if devices else command


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without hard links
        shutil.copy2(source, target)
