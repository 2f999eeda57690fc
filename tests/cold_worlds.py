"""Worlds, filters and recipes for tests of cold starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from marft.common.types import JointAction, Observation, Step, Task
from marft.config import RunSettings, load_recipe
from marft.config.interfaces.environment import Environment, Split
from marft.envs.scripted_policy import PolicyInput, ScriptedPolicy
from marft_lab.synthesis.candidates import Candidate, Filter, FilterContext, Rejections

RECIPE = Path(__file__).parents[1] / "benchmarks" / "cold_start.toml"


def cold(output: Path, **changes: Any) -> RunSettings:
    """The benchmark's recipe, with a few tasks."""
    drawn = {} if "environment" in changes else {"environment.train_tasks": 64, "environment.held_out_tasks": 16}
    few = {"synthesis.tasks": 6, "synthesis.attempts": 3, "synthesis.max_per_task": 2, "synthesis.save_every": 6}
    return load_recipe(RECIPE, changes={"output": str(output), "device": "cpu", **drawn, **few, **changes})


class Dice(Environment):
    """Shows a number that its seed has thrown, and wants it back."""

    one_step: ClassVar[bool] = True

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"{split}/{number}", f"Throw {split} {number}.", {"level": number % 2}) for number in range(6)]

    def start(self, task: Task, seed: int) -> Thrown:
        return Thrown(Random(seed).randint(100, 999))

    def script(self, skill: float = 1.0) -> ScriptedPolicy:
        return said_again


class Torn(Dice):
    """Its test tasks cannot be read."""

    def tasks(self, split: Split) -> Sequence[Task]:
        if split == "test":
            raise OSError("the disk is gone")
        return super().tasks(split)


class TrainsAlone(Dice):
    """Holds nothing out."""

    def tasks(self, split: Split) -> Sequence[Task]:
        return super().tasks(split) if split == "train" else []


class Thrown:
    def __init__(self, number: int) -> None:
        self.number = number

    async def reset(self) -> Observation:
        return Observation(f"It is {self.number}")

    async def step(self, actions: JointAction) -> Step:
        right = actions.answer is not None and actions.answer.text == str(self.number)
        return Step(Observation(""), float(right), terminated=True, success=right)

    async def close(self) -> None:
        return None


def said_again(cue: PolicyInput) -> str:
    return str(cue.messages[-1]["content"]).partition("It is ")[2][:3]


class FewWords(Filter):
    """Leaves out what says much."""

    most: int = 100

    def reject(self, candidates: Sequence[Candidate], context: FilterContext) -> Rejections:
        long = {n: sum(len(a.text) for a in one.episode.actions) > self.most for n, one in enumerate(candidates)}
        return {n: "says much" for n, much in long.items() if much}


class NoFilter(Filter):
    def rejects(self, candidates: Sequence[Candidate]) -> Rejections:
        return {}
