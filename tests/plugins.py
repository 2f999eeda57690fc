"""Plugins as a user would write them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar, Literal

from marft.common.types import Action, JointAction, Observation, Step, Task
from marft.config.interfaces.environment import Environment
from marft.config.interfaces.objective import LossInputs, LossOutput, Objective
from marft.config.interfaces.organization import Agents, Organization
from marft.config.interfaces.schedule import Progress, UpdatePhase, UpdateSchedule


class Reversed(Organization):
    """A chain from the last agent to the first."""

    loud: bool = False

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        done: list[Action] = []
        for seat in reversed(list(agents)):
            done.append(await seat(observation, sees=done))
        return JointAction(answer=done[-1])


class Flaky(Environment):
    """An environment that always rewards 1, except where it fails."""

    fails: Literal["none", "odd", "all"] = "none"
    alternates: bool = False  # rewards 1, 0, 1, 0 … over the samples of a task
    words: int = 3
    count: int = 8
    steps: int = 1

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"flaky/{n}", " ".join(["word"] * self.words)) for n in range(self.count)]

    def start(self, task: Task, seed: int) -> FlakySession:
        return FlakySession(self, task, seed)


class FlakySession:
    counter = 0

    def __init__(self, settings: Flaky, task: Task, seed: int) -> None:
        self.settings, self.task, self.left = settings, task, settings.steps
        FlakySession.counter += 1
        self.number = FlakySession.counter

    async def reset(self) -> Observation:
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        if self.settings.fails == "all" or (self.settings.fails == "odd" and self.number % 2):
            raise RuntimeError("the world ends")
        self.left -= 1
        sample = actions.actions[0].key.sample
        reward = float(sample % 2) if self.settings.alternates else 1.0
        return Step(Observation("more"), reward, terminated=self.left == 0, success=reward > 0)

    async def close(self) -> None:
        return None


class NotANumber(Objective):
    """An objective whose loss is NaN."""

    def __call__(self, inputs: LossInputs) -> LossOutput:
        return LossOutput(inputs.log_probs * float("nan"))


class Apart(Organization):
    """Everybody acts once and sees nobody: D = 0."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        await asyncio.gather(*(seat(observation) for seat in agents))
        return JointAction()


class Continued(Organization):
    """Everybody writes on from where the one before stopped, in one turn."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        last: Action | None = None
        for seat in agents:
            last = await seat(observation, begins=last)
        return JointAction()


class Forgetful(Flaky):
    """An environment that shows something else each time, whatever its seed."""

    def start(self, task: Task, seed: int) -> FlakySession:
        session = FlakySession(self, task, seed)
        session.task = Task(task.id, f"{task.prompt} {session.number}")
        return session


class HigherLower(Environment):
    """Guess a number. What is shown says only whether it is higher or lower than the last guess."""

    highest: int = 15
    steps: int = 4

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(f"number/{n}", f"Guess my number, 1 to {self.highest}.", {"number": n})
            for n in range(1, self.highest + 1)
        ]

    def start(self, task: Task, seed: int) -> HigherLowerSession:
        return HigherLowerSession(task, self.steps)


class HigherLowerSession:
    def __init__(self, task: Task, steps: int) -> None:
        self.task, self.left = task, steps

    async def reset(self) -> Observation:
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        self.left -= 1
        said = actions.answer.text.strip() if actions.answer else ""
        number, guess = self.task.data["number"], int(said) if said.isdecimal() and len(said) < 9 else 0
        shown = "It is higher." if number > guess else "It is lower."
        return Step(
            Observation(shown), float(guess == number), terminated=guess == number, truncated=self.left == 0,
            success=guess == number,
        )  # fmt: skip

    async def close(self) -> None:
        return None


class FirstPolicyAlone(UpdateSchedule):
    """The first policy is updated, and no other."""

    ratio_limit: ClassVar[float] = 1.0

    def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
        return [UpdatePhase((policies[0],))]


class PlayAgain(UpdateSchedule):
    """One policy after the other, each on episodes that the team as it is then has played."""

    ratio_limit: ClassVar[float] = 1.0

    def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
        return [UpdatePhase((policy,), new_episodes=True) for policy in policies]
