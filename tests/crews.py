"""Environments, organizations and recipes for worker processes."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from marft.common.types import Episode, JointAction, Observation, Step, Task, Tool
from marft.config import RunSettings
from marft.config.interfaces.environment import Environment
from marft.config.interfaces.organization import Agents, Organization
from marft.config.interfaces.tools import StatelessSource, ToolProvider

REASONS = ("raises", "exits", "killed", "hangs", "garbles")


class Restless(Environment):
    """Two steps, each after as long as it happens to take; what they pay depends on what was said and on the seed."""

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"restless/{n}", "word " * (1 + n % 5), {"n": n}) for n in range(12)]

    def start(self, task: Task, seed: int) -> RestlessSession:
        return RestlessSession(task, seed)


class RestlessSession:
    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.random, self.steps = task, random.Random(seed), 0

    async def reset(self) -> Observation:
        time.sleep(random.random() * 0.02)
        return Observation(f"{self.task.prompt} {self.random.random():.3f}")

    async def step(self, actions: JointAction) -> Step:
        await asyncio.sleep(random.random() * 0.02)
        self.steps += 1
        said = sum(len(action.text) for action in actions.actions)
        reward = (said % 7) / 7 + self.random.random()
        return Step(Observation(f"more {self.random.random():.3f}"), reward, self.steps == 2, success=said % 2 > 0)

    async def close(self) -> None:
        return None


class Crowd(Organization):
    """Branches that ask the same agents, each a little later than the other, and choose on the way."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        async def branch(passes: int) -> Any:
            plan = await agents.reasoner(observation)
            for _ in range(passes):
                await asyncio.sleep(0)
            word = await agents.reasoner.choose(observation, ["yes", "no, never", f"{passes}"], sees=[plan])
            return await agents.actor(observation, sees=[plan, word])

        done = await asyncio.gather(branch(3), branch(0), branch(1))
        return JointAction(answer=done[0])


class Scarce(ToolProvider):
    """A tool of which the whole run makes one call at a time."""

    folder: str

    def connect(self) -> ScarceSource:
        return ScarceSource(Path(self.folder))


class ScarceSource(StatelessSource):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def tools(self) -> Sequence[Tool]:
        return [
            Tool("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}})
        ]

    @property
    def max_concurrency(self) -> int:
        return 1

    async def call(self, tool: str, arguments: Any) -> str:
        try:
            (self.folder / "taken").mkdir()
        except FileExistsError:
            return "somebody else is at it"
        time.sleep(0.05)
        (self.folder / "taken").rmdir()
        return "5"


class Doomed(Environment):
    """Tasks that end as their names say. ``folder`` is where sessions leave notes."""

    folder: str = ""
    seconds: float = 0.0  # that a step takes
    closing: float = 0.0  # seconds that it takes to close a session

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{reason}/{n}", "begin") for n in range(4) for reason in ("fine", *REASONS)]

    def start(self, task: Task, seed: int) -> DoomedSession:
        return DoomedSession(self, task.id.split("/")[0])


class DoomedSession:
    def __init__(self, settings: Doomed, reason: str) -> None:
        self.settings, self.reason = settings, reason

    async def reset(self) -> Observation:
        return Observation("with torch" if "torch" in sys.modules else "begin")

    async def step(self, actions: JointAction) -> Step:
        if self.settings.seconds:
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            name = f"{actions.actions[0].key.task}-{actions.actions[0].key.sample}".replace("/", "-")
            note = Path(self.settings.folder) / f"stepping-{name}.tmp"
            note.write_text(f"{os.getpid()} {child.pid}")
            note.rename(note.with_suffix(""))
            await asyncio.sleep(self.settings.seconds)
        if self.reason == "slow":
            await asyncio.sleep(0.5)
        if self.reason == "raises":
            raise RuntimeError("the world ends")
        if self.reason == "exits":
            sys.stdout.write("\x1b[2Jgood bye\n")
            os._exit(3)
        if self.reason == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.reason == "garbles":
            garble()
        if self.reason == "hangs":
            re.match(r"(a+)+$", "a" * 60 + "b")  # which lets no other thread of Python run
        return Step(Observation("over"), 1.0, terminated=True, success=True)

    async def close(self) -> None:
        await asyncio.sleep(self.settings.closing)
        if self.settings.seconds:
            (Path(self.settings.folder) / f"closed-{id(self)}").touch()


def garble() -> None:
    """Write a frame that is no pickle into every socket of the process, and so into its connection with the run."""
    for opened in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(opened.readlink()).startswith("socket:"):
                os.write(int(opened.name), (5).to_bytes(8, "big") + b"abcde")
    time.sleep(60)


def crew(output: Path, environment: dict[str, Any], *overrides: str, processes: int = 2) -> RunSettings:
    """The team of :mod:`tests.helpers` on an environment, in worker processes."""
    from tests.helpers import settings  # with it comes torch, which workers have no use for

    return settings("tiny", output, "--rollout.workers", str(processes), *overrides, environment=environment)


def told(episodes: Sequence[Episode]) -> list[Any]:
    """All of some episodes but for what took how long, to the bit."""
    return [_plain(episode) for episode in episodes]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if hasattr(value, "__dataclass_fields__"):
        timeless = [
            name for name in value.__dataclass_fields__ if name not in ("seconds", "start_time", "started", "ended")
        ]
        return type(value).__name__, {name: _plain(getattr(value, name)) for name in timeless}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
