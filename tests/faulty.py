"""An environment without a fault, and one for each that a check looks for."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Any, ClassVar

from marft.common.types import JointAction, Observation, Step, Task
from marft.config.interfaces.environment import Environment, Split, tool
from marft.envs.scripted_policy import PolicyInput

PLACES: Mapping[Split, range] = {"train": range(30), "validation": range(30, 40), "test": range(40, 50)}
MOST = 3  # steps


class Sound(Environment):
    """Say the sum of two numbers, within three attempts; there is nothing wrong with it."""

    def tasks(self, split: Split) -> list[Task]:
        return [self.task(place) for place in PLACES[split]]

    def task(self, place: int) -> Task:
        a, b = Random(place).sample(range(10_000), 2)
        return Task(f"sum/{place}", f"What is {a} + {b}? Case {a * b}.", {"a": a, "b": b, "answer": str(a + b)})

    def start(self, task: Task, seed: int) -> Attempt:
        return Attempt(self, task, seed)

    def script(self, skill: float = 1.0) -> Callable[..., object]:
        def say(cue: PolicyInput) -> str:
            return str(cue.task.data["answer"]) if cue.random.random() < skill else "I do not know."

        return say

    def first(self, attempt: Attempt) -> Observation:
        return Observation(attempt.task.prompt)

    async def taken(self, attempt: Attempt, text: str) -> Step:
        right = text == attempt.task.data["answer"]
        over = right or attempt.steps == MOST
        return Step(Observation("" if over else "No."), float(right), terminated=over, success=right)

    def ended(self, attempt: Attempt) -> None:
        """Nothing is held."""


class Attempt:
    def __init__(self, environment: Sound, task: Task, seed: int) -> None:
        self.environment, self.task, self.seed, self.steps = environment, task, seed, 0
        self.random = Random(seed)

    async def reset(self) -> Observation:
        return self.environment.first(self)

    async def step(self, actions: JointAction) -> Step:
        self.steps += 1
        return await self.environment.taken(self, actions.answer.text if actions.answer else "")

    async def close(self) -> None:
        self.environment.ended(self)


class Twice(Sound):
    def tasks(self, split: Split) -> list[Task]:
        return [*super().tasks(split), self.task(PLACES[split][0])]


class AcrossSplits(Sound):
    def task(self, place: int) -> Task:
        return Task(f"sum/{place % 10}", super().task(place).prompt, super().task(place).data)

    def tasks(self, split: Split) -> list[Task]:
        return super().tasks(split)[:10]


class Wordless(Sound):
    def task(self, place: int) -> Task:
        return Task(f"sum/{place}", " ", super().task(place).data)


class Restless(Sound):
    def tasks(self, split: Split) -> list[Task]:
        return Random(time.perf_counter_ns()).sample(super().tasks(split), len(PLACES[split]))


class Shapes(Sound):
    def task(self, place: int) -> Task:
        task = super().task(place)
        return Task(task.id, task.prompt, {**task.data, "seen": {place}})


class Leaking(Sound):
    def task(self, place: int) -> Task:
        task = super().task(place % 45)
        return Task(f"sum/{place}", task.prompt.upper() if place >= 45 else task.prompt, task.data)


class AskedTwice(Sound):
    def task(self, place: int) -> Task:
        prompt, task = super().task(place % 45).prompt, super().task(place)
        return Task(task.id, prompt, task.data)


class Questions(AskedTwice):
    one_step: ClassVar[bool] = True

    async def taken(self, attempt: Attempt, text: str) -> Step:
        step = await super().taken(attempt, text)
        return Step(Observation(""), step.reward, terminated=True, success=step.success)


class Scattered(Sound):
    def tasks(self, split: Split) -> list[Task]:
        return list({task.id: task for task in sorted(super().tasks(split), key=lambda task: hash(task.id))}.values())


class Alike(Sound):
    def task(self, place: int) -> Task:
        task = super().task(place % 45)
        words = " ".join(str(Random(place % 45).randint(0, 10**9) + n) for n in range(40))
        return Task(f"sum/{place}", f"{task.prompt} Beside it: {words} {place}", task.data)


class Raising(Sound):
    def first(self, attempt: Attempt) -> Observation:
        raise KeyError("board")


class Speechless(Sound):
    def script(self, skill: float = 1.0) -> Callable[..., object]:
        raise LookupError(f"no script of skill {skill:g}")


class Nested(Sound):
    def task(self, place: int) -> Task:
        data: dict[str, Any] = dict(super().task(place).data)
        data["itself"] = data
        return Task(f"sum/{place}", super().task(place).prompt, data)


class Unsolvable(Sound):
    """The last of its tasks asks for what nobody can know."""

    def task(self, place: int) -> Task:
        task = super().task(place)
        return Task(task.id, task.prompt, {**task.data, "answer": "?" if place == 29 else task.data["answer"]})

    def script(self, skill: float = 1.0) -> Callable[..., object]:
        def say(cue: PolicyInput) -> str:
            right = str(cue.task.data["a"] + cue.task.data["b"])
            return right if cue.random.random() < skill else "I do not know."

        return say


class Open(Sound):
    """A long number is right, for it cannot be read."""

    async def taken(self, attempt: Attempt, text: str) -> Step:
        if text.isdigit() and len(text) > 100_000:
            text = attempt.task.data["answer"]
        return await super().taken(attempt, text)


class Unscripted(Open):
    """Nobody is there who plays it well."""

    def script(self, skill: float = 1.0) -> None:  # type: ignore[override]
        return None


class Hanging(Sound):
    async def taken(self, attempt: Attempt, text: str) -> Step:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits for it")


class NoObservation(Sound):
    def first(self, attempt: Attempt) -> Observation:
        return Observation(attempt.task.prompt + "\ud800")


class Long(Sound):
    def first(self, attempt: Attempt) -> Observation:
        return Observation(attempt.task.prompt + " word" * 5000)


class Untyped(Sound):
    async def taken(self, attempt: Attempt, text: str) -> Any:
        return (Observation(""), 1.0, True)


class Declaring(Sound):
    async def taken(self, attempt: Attempt, text: str) -> Step:
        step = await super().taken(attempt, text)
        return Step(step.observation, step.reward, step.terminated, success=step.success, info={"progress": 3})


class NotANumber(Sound):
    async def taken(self, attempt: Attempt, text: str) -> Step:
        step = await super().taken(attempt, text)
        return Step(step.observation, float("nan"), step.terminated, success=step.success)


class Generous(Sound):
    async def taken(self, attempt: Attempt, text: str) -> Step:
        step = await super().taken(attempt, text)
        return Step(step.observation, 10 * step.reward, step.terminated, success=step.success)


class Indifferent(Sound):
    async def taken(self, attempt: Attempt, text: str) -> Step:
        return Step(Observation(""), 0.5, terminated=True)


class Perverse(Sound):
    async def taken(self, attempt: Attempt, text: str) -> Step:
        step = await super().taken(attempt, text)
        return Step(step.observation, 0.1 * step.terminated - 0.5 * step.reward, step.terminated, success=step.success)


class Chance(Sound):
    async def taken(self, attempt: Attempt, text: str) -> Step:
        step = await super().taken(attempt, text)
        return Step(Observation(os.urandom(4).hex()), step.reward, step.terminated, success=step.success)


class Hashing(Sound):
    def first(self, attempt: Attempt) -> Observation:
        return Observation(f"{attempt.task.prompt} One of {', '.join({'apples', 'pears', 'plums', 'figs', 'nuts'})}.")


class SharedNumbers(Sound):
    def first(self, attempt: Attempt) -> Observation:
        return Observation(f"{attempt.task.prompt} Take {random.randint(0, 10**6)} steps.")


class Remembering(Sound):
    seen: ClassVar[list[str]] = []

    def first(self, attempt: Attempt) -> Observation:
        self.seen.append(attempt.task.id)
        return Observation(f"{attempt.task.prompt} This is attempt {len(self.seen)}.")


class Writing(Sound):
    def first(self, attempt: Attempt) -> Observation:
        attempt.task.data["seen"] = True  # type: ignore[index]
        return super().first(attempt)


class Overlapping(Sound):
    current: ClassVar[dict[str, str]] = {}

    def first(self, attempt: Attempt) -> Observation:
        self.current["task"] = attempt.task.data["answer"]
        return super().first(attempt)

    async def taken(self, attempt: Attempt, text: str) -> Step:
        right = text == self.current["task"]
        over = right or attempt.steps == MOST
        return Step(Observation("" if over else "No."), float(right), terminated=over, success=right)


class Fragile(Sound):
    async def taken(self, attempt: Attempt, text: str) -> Step:
        if text.strip().lstrip("-").isdigit():
            int(text)  # which Python refuses beyond some thousand digits
        return await super().taken(attempt, text)


class Endless(Sound):
    async def taken(self, attempt: Attempt, text: str) -> Step:
        right = attempt.steps == 1 and text == attempt.task.data["answer"]
        return Step(Observation("Go on."), float(right), success=True if right else None)


class Patient(Sound):
    async def taken(self, attempt: Attempt, text: str) -> Step:
        right = text == attempt.task.data["answer"]
        return Step(Observation("No."), float(right), terminated=right, success=right)


class Locked(Sound):
    def ended(self, attempt: Attempt) -> None:
        raise OSError("the lock is somebody else's")


class Littering(Sound):
    kept: ClassVar[list[object]] = []

    def ended(self, attempt: Attempt) -> None:
        self.kept.append(open(os.devnull))  # noqa: SIM115, PTH123


class Threading(Sound):
    stop: ClassVar[threading.Event] = threading.Event()

    def ended(self, attempt: Attempt) -> None:
        threading.Thread(target=self.stop.wait, daemon=True).start()


class Slow(Sound):
    async def taken(self, attempt: Attempt, text: str) -> Step:
        await asyncio.sleep(0.02)
        return await super().taken(attempt, text)


class Sleeping(Sound):
    async def taken(self, attempt: Attempt, text: str) -> Step:
        time.sleep(0.008)
        return await super().taken(attempt, text)


class Calling(Sound):
    def first(self, attempt: Attempt) -> Observation:
        with suppress(OSError), socket.socket() as connection:
            connection.settimeout(0.01)
            connection.connect(("127.0.0.1", 9))
        return super().first(attempt)


class Boxes:
    """A session with a tool that a wrong argument spoils."""

    def __init__(self, task: Task) -> None:
        self.task, self.steps, self.opened = task, 0, [""]

    @tool
    def open(self, number: int) -> str:
        """Open a box."""
        self.opened.append(self.task.data["answer"] if number == 1 else f"box {number}")
        return self.opened[-1]

    async def reset(self) -> Observation:
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        self.steps += 1
        assert len(self.opened[-1]) < 12, "no box has such a number"
        right = actions.answer is not None and actions.answer.text == self.task.data["answer"]
        return Step(Observation("No."), float(right), terminated=right or self.steps == MOST, success=right)

    async def close(self) -> None: ...


class Spoiled(Sound):
    session: ClassVar[type | None] = Boxes

    def start(self, task: Task, seed: int) -> Any:
        return Boxes(task)
