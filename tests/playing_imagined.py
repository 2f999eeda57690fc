"""A world of two steps for whole runs with imagined episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from marft.common.types import JointAction, Observation, Step, Task
from marft.config.interfaces.environment import Environment, Split


class Coins(Environment):
    """Two tosses, each foretold by an agent; heads pays."""

    controls_turns: ClassVar[bool] = True
    offers_options: ClassVar[bool] = True

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"{split}/{number}", "Say it.") for number in range(4)]

    def start(self, task: Task, seed: int) -> Tossed:
        return Tossed()


@dataclass
class Tossed:
    steps: int = 0

    async def reset(self) -> Observation:
        return self.shown()

    async def step(self, actions: JointAction) -> Step:
        self.steps += 1
        said = actions.actions[-1].text
        over = self.steps == 2
        return Step(self.shown(), float(said == "heads"), terminated=over, success=over or None)

    def shown(self) -> Observation:
        return Observation(f"Toss {self.steps}.", turn=("actor",), options={"actor": ("heads", "tails")})

    async def close(self) -> None:
        """Nothing is held."""
