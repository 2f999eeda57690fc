"""A world of two steps for whole runs with imagined episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marft.config.parts import EnvironmentPart
from marft.game.environment import Split
from marft.types import JointAction, Observation, Step, Task


class Coins(EnvironmentPart):
    """Two steps; a step pays by the length of what is said, and by nothing else."""

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"{split}/{number}", "Say it.") for number in range(4)]

    def start(self, task: Task, seed: int) -> Tossed:
        return Tossed()


@dataclass
class Tossed:
    steps: int = 0

    async def reset(self) -> Observation:
        return Observation("Say it.")

    async def step(self, actions: JointAction) -> Step:
        self.steps += 1
        said = actions.answer.text if actions.answer else ""
        over = self.steps == 2
        return Step(Observation("Again."), float(len(said) % 2), terminated=over, success=over or None)

    async def close(self) -> None:
        """Nothing is held."""
