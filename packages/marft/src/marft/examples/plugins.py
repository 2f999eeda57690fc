"""Example plugins, one of each kind: an environment, an organization, a credit assignment, an objective.

marft train demo --environment "{ name = 'marft.examples.plugins:Guess', highest = 20 }"
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Literal

import numpy as np

from marft.agents.answers import graded_text
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput
from marft.config.interfaces.environment import Environment, Split
from marft.config.interfaces.objective import LossInputs, LossOutput, Objective
from marft.config.interfaces.organization import Agents, Organization
from marft.rewards.groups import group_indices
from marft.trainer.credit.returns import broadcast_to_actions, team_returns


class Guess(Environment):
    """Guess a number, with at most ten attempts."""

    highest: int = 10

    def tasks(self, split: Split) -> list[Task]:
        """Return the tasks in a split, one per number."""
        numbers = {"train": range(1, self.highest - 1), "validation": [self.highest - 1], "test": [self.highest]}[split]
        return [Task(f"guess/{n}", f"Guess my number, from 1 to {self.highest}.", {"number": n}) for n in numbers]

    def start(self, task: Task, seed: int) -> GuessSession:  # noqa: ARG002  no randomness
        """Return a new session."""
        return GuessSession(task)


class GuessSession:
    """One attempt at a number."""

    def __init__(self, task: Task) -> None:
        self.task, self.attempts_left = task, 10

    async def reset(self) -> Observation:
        """Return the task."""
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        """Check the team's guess."""
        is_correct = graded_text(actions.answer) == str(self.task.data["number"])
        self.attempts_left -= 1
        return Step(
            Observation("Wrong. Guess again."),
            float(is_correct),
            terminated=is_correct or not self.attempts_left,
            success=is_correct,
        )

    async def close(self) -> None:
        return None


class Vote(Organization):
    """All agents draft concurrently, and the agent called ``judge`` decides."""

    ignores_turns: ClassVar[bool] = True

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        drafts = await asyncio.gather(*(agent(observation) for agent in agents if agent.role != "judge"))
        return JointAction(answer=await agents.judge(observation, sees=drafts))


class Median(Credit):
    """R − the median over attempts at the same task: one lucky attempt does not move the baseline."""

    comparison_group: ClassVar[Literal["task", ""]] = "task"

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Return the advantage of each action, shape [A]."""
        returns = team_returns(inputs)
        advantages = np.zeros_like(returns)
        for group in group_indices([episode.task.id for episode in inputs.episodes]):
            advantages[group] = returns[group] - np.median(returns[group])
        return CreditOutput(broadcast_to_actions(inputs, advantages))


class SPO(Objective):
    """Simple policy optimization (Xie et al. 2024): a quadratic penalty in place of the clip."""

    width: float = 0.2

    def __call__(self, inputs: LossInputs) -> LossOutput:
        ratio = (inputs.log_probs - inputs.old_log_probs).exp()
        penalty = inputs.advantages.abs() * (ratio - 1).square() / (2 * self.width)
        return LossOutput(penalty - ratio * inputs.advantages)
