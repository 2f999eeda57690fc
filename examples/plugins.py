"""One of each part that a package can add: an environment, an organization, a credit, an objective.

marft train recipes/demo.toml --environment "{ name = 'examples.plugins:Guess', highest = 20 }"
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from marft.config.plugins import Plugin
from marft.game.agents import Agents
from marft.game.environment import Split
from marft.learning.interfaces import Credits, Level, LossInputs, LossOutput, Values
from marft.types import Episode, JointAction, Observation, Step, Task


class Guess(Plugin):
    """Guess a number; a wrong guess may be followed by another."""

    highest: int = 10

    def tasks(self, split: Split) -> list[Task]:
        numbers = {"train": range(1, self.highest - 1), "validation": [self.highest - 1], "test": [self.highest]}[split]
        return [Task(f"guess/{n}", f"Guess my number, from 1 to {self.highest}.", {"number": n}) for n in numbers]

    def start(self, task: Task, seed: int) -> GuessSession:  # noqa: ARG002  nothing here is random
        return GuessSession(task)


class GuessSession:
    def __init__(self, task: Task) -> None:
        self.task = task

    async def reset(self) -> Observation:
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        right = actions.answer is not None and actions.answer.text.strip() == str(self.task.data["number"])
        return Step(Observation("Wrong. Guess again."), float(right), terminated=right, success=right)

    async def close(self) -> None:
        return None


class Vote(Plugin):
    """Everyone drafts at the same time, and the agent called ``judge`` decides."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        drafts = await asyncio.gather(*(agent(observation) for agent in agents if agent.role != "judge"))
        return JointAction(answer=await agents.judge(observation, sees=drafts))


class TeamReturn(Plugin):
    """Every decision earns what its episode earned (REINFORCE without a baseline)."""

    def assign(self, episodes: Sequence[Episode], values: Values, level: Level) -> Credits:  # noqa: ARG002
        rows = iter(values.actions)
        earned = [np.full_like(next(rows), e.total_reward) for e in episodes for _ in e.actions]
        return Credits(advantages=earned, returns=earned, monte_carlo=earned)


class Reinforce(Plugin):
    """``−A log π``."""

    def __call__(self, inputs: LossInputs) -> LossOutput:
        return LossOutput(-inputs.advantages * inputs.log_probs)
