"""Several engines of the same policies: each request goes to one of them, and all get the weights."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Protocol

import torch

from marft.agents.engine import Weights
from marft.common import seeds
from marft.common.processes.child import Command
from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, Sampling, Versions
from marft.inference.apart.engine import EngineApart

SLACK = 4  # requests that a task's engine may have under way beyond the idlest's


class Save(Protocol):
    """Writes weights down."""

    def __call__(self, folder: Path, /) -> None: ...


class Replicas:
    """Engines that are alike. What is drawn under a key does not depend on which of them draws it.

    What is asked of a task goes to the same one, which has read its prompt before, unless that has noticeably more to
    do than another.

    Args:
        saves: of the policies, by name.
    """

    def __init__(self, engines: Sequence[EngineApart], saves: Mapping[str, Once]) -> None:
        self.engines, self.saves = engines, saves
        self._under_way = [0] * len(engines)

    async def start(self) -> None:
        """Start all of them.

        Raises:
            RunError: one does not come up.
        """
        await asyncio.gather(*(engine.start() for engine in self.engines))

    async def sample(self, policy: str, prompt: Prompt, sampling: Sampling, key: ActionKey) -> Completion:
        """Sample one action with one of them; raises what that raises."""
        with self._one(key) as engine:
            return await engine.sample(policy, prompt, sampling, key)

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: Sampling, key: ActionKey
    ) -> tuple[Choice, Versions]:
        """Choose with one of them; raises what that raises."""
        with self._one(key) as engine:
            return await engine.choose(policy, prompt, options, sampling, key)

    @contextmanager
    def external_wait(self) -> Iterator[None]:
        """Requests are taken as they come."""
        yield

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Have the policies written down once, and loaded by all."""
        for name in policies:
            self.saves[name].renew()
        await asyncio.gather(*(engine.publish(policies, version) for engine in self.engines))

    async def settle(self) -> None:
        """Settle all of them."""
        await asyncio.gather(*(engine.settle() for engine in self.engines))

    def version(self, policy: str) -> int:
        """The version of a policy that was published last; 0 where none was."""
        return self.engines[0].version(policy)

    def usage(self) -> Mapping[str, float]:
        """Theirs together."""
        total = Counter[str]()
        for engine in self.engines:
            total.update(engine.usage())
        return dict(total)

    async def close(self) -> None:
        """End all of them."""
        await asyncio.gather(*(engine.close() for engine in self.engines))

    @contextmanager
    def _one(self, key: ActionKey) -> Iterator[EngineApart]:
        """One of them, which has more under way until this is over."""
        idlest = min(range(len(self.engines)), key=self._under_way.__getitem__)
        home = seeds.derive_seed(0, key.stream, key.task) % len(self.engines)
        number = home if self._under_way[home] <= self._under_way[idlest] + SLACK else idlest
        self._under_way[number] += 1
        try:
            yield self.engines[number]
        finally:
            self._under_way[number] -= 1


class Once:
    """Writes weights down once for several engines: whoever comes after the first gets the same files."""

    def __init__(self, save: Save) -> None:
        self.save = save
        self._lock = Lock()
        self._folder: Path | None = None

    def renew(self) -> None:
        """They are others now."""
        self._folder = None

    def __call__(self, folder: Path) -> None:
        with self._lock:
            if self._folder is None or not self._folder.is_dir():
                self.save(folder)
                self._folder = folder
            else:
                shutil.copytree(self._folder, folder, copy_function=_linked)


def spread(replicas: int, devices: Sequence[str], visible: Sequence[str]) -> list[str]:
    """The CUDA devices of each replica, as CUDA_VISIBLE_DEVICES has them; "": those that are visible.

    >>> spread(2, [], ["0", "1", "2", "3"])
    ['0,1', '2,3']
    >>> spread(2, ["1", "3"], ["0", "1", "2", "3"])
    ['1', '3']

    Args:
        devices: to use; none: all that are visible.

    Raises:
        ValueError: they cannot be divided among the replicas.
    """
    used = devices or (visible if replicas > 1 else [])
    if len(used) % replicas:
        raise ValueError(
            f"engine.replicas: {len(used)} GPUs ({', '.join(used)}) cannot be divided among {replicas} replicas; name "
            "others with engine.devices"
        )
    each = len(used) // replicas
    return [",".join(used[number * each : (number + 1) * each]) for number in range(replicas)]


def visible_devices() -> list[str]:
    """CUDA devices that this process may use."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return [name for name in named.split(",") if name][:count] if named else [f"{number}" for number in range(count)]


def on_devices(command: Command, devices: str) -> Command:
    """A command whose program sees these CUDA devices alone; "": as here."""
    return (lambda descriptor: ["env", f"CUDA_VISIBLE_DEVICES={devices}", *command(descriptor)]) if devices else command


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another disk, or where there are no links
        shutil.copy2(source, target)
