"""Everything that an environment, a tool, a reward term or an organization may do wrong."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from marft.common.errors import EpisodeFailedError
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.interfaces.environment import Environment, tool
from marft.config.interfaces.reward import TermReward

Misdeed = Callable[[], Any]


class SilentError(Exception):
    def __str__(self) -> str:
        raise KeyError("no words")

    __repr__ = __str__


class ExitingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(5)


class NotedError(Exception):
    @property
    def __notes__(self) -> list[str]:
        raise RuntimeError("no notes")


class PanicError(BaseException):
    pass


class Sly:
    """Whatever is asked of it raises."""

    def __getattribute__(self, name: str) -> Any:
        raise OSError(f"nobody reads {name}")

    def __repr__(self) -> str:
        raise OSError("nobody sees me")


class Endless(Mapping[str, float]):
    def __iter__(self) -> Iterator[str]:
        raise StopIteration

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: str) -> float:
        raise SystemExit


def odd_syntax_error() -> SyntaxError:
    error = SyntaxError("odd")
    error.filename, error.lineno, error.text, error.offset = 7, "x", 3, object()  # type: ignore[assignment]
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "an error": lambda: ValueError("boom"),
    "stop": lambda: StopIteration(3),
    "stop, in async": lambda: StopAsyncIteration(),
    "exit": lambda: SystemExit(3),
    "interrupt": lambda: KeyboardInterrupt(),
    "generator's exit": lambda: GeneratorExit(),
    "cancelled": lambda: asyncio.CancelledError(),
    "late": lambda: TimeoutError("of its own"),
    "panic": lambda: PanicError("boom"),
    "no words": lambda: SilentError(),
    "exits when asked": lambda: ExitingError(),
    "odd notes": lambda: NotedError("boom"),
    "odd syntax": odd_syntax_error,
    "20 MB": lambda: ValueError("x" * 20_000_000),
    "escapes": lambda: ValueError("\x1b]0;title\x07\x1b[2J\x9b [red]\ud800\x00"),
    "a name with escapes": lambda: type("\x1b[2J", (Exception,), {})(),
    "a group": lambda: ExceptionGroup("several", [SilentError(), ValueError()]),
    "a chosen status": lambda: EpisodeFailedError("terminated", "all is well"),  # type: ignore[arg-type]
    "no memory": lambda: MemoryError(),
}


def raising(name: str) -> Misdeed:
    def misdeed() -> Any:
        raise ERRORS[name]()

    return misdeed


def stop_loop() -> Any:
    asyncio.get_running_loop().stop()
    return None


def cancel_all() -> Any:
    for task in asyncio.all_tasks():
        task.cancel()
    return asyncio.sleep(0.01)


def exit_in_a_task() -> Any:
    async def leave() -> None:
        sys.exit(4)

    async def wait() -> None:
        await asyncio.create_task(leave())

    return wait()


def recurse() -> Any:
    return recurse()


LOOPS: dict[str, Misdeed] = {
    "stops its loop": stop_loop,
    "cancels all": cancel_all,
    "exits in a task": exit_in_a_task,
    "recurses": recurse,
}


def block() -> None:
    time.sleep(6.0)


async def wait() -> None:
    await asyncio.Event().wait()


async def refuse_to_end() -> None:
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        with suppress(BaseException):
            await asyncio.sleep(0.05)


HANGS: dict[str, Misdeed] = {"block": block, "wait": wait, "refuse to end": refuse_to_end}

END = Observation("end")
ANYTHING: dict[str, Any] = {
    "nothing": None,
    "a number": 7,
    "a text": "text",
    "a tuple": (END, 1.0, True, False, {}),
    "something sly": Sly(),
    "a class": Step,
}
STEPS: dict[str, Any] = {
    "huge": Step(END, 10**400, True),
    "huge and negative": Step(END, -(10**5000), True),
    "no number": Step(END, "1", True),  # type: ignore[arg-type]
    "not finite": Step(END, float("nan"), True),
    "complex": Step(END, np.complex128(1j), True),  # type: ignore[arg-type]
    "several": Step(END, np.array([1.0, 2.0]), True),  # type: ignore[arg-type]
    "a tensor of one": Step(END, torch.ones(1), True),  # type: ignore[arg-type]
    "a sly reward": Step(END, Sly(), True),  # type: ignore[arg-type]
    "a text for an end": Step(END, 1.0, "no"),  # type: ignore[arg-type]
    "two for an end": Step(END, 1.0, 2),  # type: ignore[arg-type]
    "a sly end": Step(END, 1.0, Sly()),  # type: ignore[arg-type]
    "a text for a cut": Step(END, 1.0, truncated="x"),  # type: ignore[arg-type]
    "a text for success": Step(END, 1.0, True, success="yes"),  # type: ignore[arg-type]
    "a share of success": Step(END, 1.0, True, success=0.5),  # type: ignore[arg-type]
    "a tensor for success": Step(END, 1.0, True, success=torch.tensor([True, False])),  # type: ignore[arg-type]
    "rewards in a list": Step(END, 1.0, True, agent_rewards=[1.0]),  # type: ignore[arg-type]
    "rewards without end": Step(END, 1.0, True, agent_rewards=Endless()),
    "a stranger": Step(END, 1.0, True, agent_rewards={"nobody": 1.0}),
    "a number for a role": Step(END, 1.0, True, agent_rewards={1: 1.0}),  # type: ignore[dict-item]
    "a huge reward of its own": Step(END, 1.0, True, agent_rewards={"a": 10**400}),
    "no observation": Step(None, 1.0),  # type: ignore[arg-type]
    "no text": Step(Observation(7), 1.0),  # type: ignore[arg-type]
    "half a character": Step(Observation("\ud83d"), 1.0),
    "bytes": Step(Observation(b"x"), 1.0),  # type: ignore[arg-type]
    "50 MB": Step(Observation("x" * 50_000_000), 1.0),
}
FINE_STEPS: dict[str, tuple[Any, float, bool | None]] = {  # odd, but plain what is meant
    "numpy": (Step(END, np.float32(0.5), np.bool_(True), success=np.bool_(False)), 0.5, False),  # type: ignore[arg-type]
    "tensors": (Step(END, torch.tensor(2.0), torch.tensor(True), success=torch.tensor(True)), 2.0, True),  # type: ignore[arg-type]
    "integers": (Step(END, 3, 1, success=0), 3.0, False),  # type: ignore[arg-type]
    "what cannot be copied": (Step(END, 1.0, True, info={"lock": time, "self": Sly()}), 1.0, None),
    "no mapping for info": (Step(END, 1.0, True, info=Sly()), 1.0, None),  # type: ignore[arg-type]
    "NULs": (Step(Observation("a\x00b\x1b[2J"), 1.0, True), 1.0, None),
}
EARNED: dict[str, Any] = {
    **ANYTHING,
    "numbers": [1.0],
    "too many": [TermReward(), TermReward()],
    "huge": [TermReward(10**400)],
    "no number": [TermReward("1")],  # type: ignore[arg-type]
    "sly": [Sly()],
    "sly agents": [TermReward(1.0, Sly())],  # type: ignore[arg-type]
    "a stranger": [TermReward(1.0, {"nobody": 1.0})],
    "not finite": [TermReward(1.0, {"a": float("inf")})],
}


class World:
    """An environment of which each task has at most one misdeed: in a method of its session, or in ``start``."""

    def __init__(self, misdeeds: Mapping[str, tuple[str, Misdeed]]) -> None:
        self.misdeeds = misdeeds  # by task

    def tasks(self, split: str) -> list[Task]:
        raise NotImplementedError

    def does(self, task: Task, method: str) -> Any:
        """``None`` where it behaves."""
        where, misdeed = self.misdeeds.get(task.id, ("", None))
        return misdeed if where == method else None

    def start(self, task: Task, seed: int) -> Any:
        misdeed = self.does(task, "start")
        return misdeed() if misdeed else WorldSession(self, task)


class WorldSession:
    def __init__(self, world: World, task: Task) -> None:
        self.world, self.task = world, task

    async def _do(self, method: str, otherwise: Any) -> Any:
        misdeed = self.world.does(self.task, method)
        if misdeed is None:
            return otherwise
        result = misdeed()
        return await result if asyncio.iscoroutine(result) else result

    async def reset(self) -> Observation:
        return await self._do("reset", Observation(f"begin {self.task.id}"))  # type: ignore[no-any-return]

    async def step(self, actions: JointAction) -> Step:
        return await self._do("step", Step(END, float(len(self.task.id)), True, success=True))  # type: ignore[no-any-return]

    async def close(self) -> None:
        return await self._do("close", None)  # type: ignore[no-any-return]

    @tool
    async def look(self) -> str:
        """Look."""
        return str(await self._do("look", "a door"))


class Bad(Environment):
    """The world as a recipe names it: every other task has a misdeed in its last step."""

    calm: bool = False

    def tasks(self, split: str) -> list[Task]:
        return [task for name in self._misdeeds() for task in (Task(f"good {name}", "?"), Task(f"bad {name}", "?"))]

    def start(self, task: Task, seed: int) -> WorldSession:
        misdeeds = {} if self.calm else {f"bad {name}": ("step", misdeed) for name, misdeed in self._misdeeds().items()}
        return WorldSession(World(misdeeds), task)

    def _misdeeds(self) -> dict[str, Misdeed]:
        returned = {
            name: (lambda name=name: STEPS[name]) for name in ("huge", "a text for success", "half a character")
        }
        raised = {name: raising(name) for name in ("stop", "exit", "no words", "20 MB", "escapes")}
        return {**returned, **raised, "a tuple": lambda: ANYTHING["a tuple"], "stops its loop": LOOPS["stops its loop"]}
