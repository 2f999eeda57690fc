"""Sessions of question-and-answer tasks: one observation, one joint action, one graded answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from marft.agents.answers import text_said
from marft.common.types import JointAction, Observation, Step, Task


class Grade(NamedTuple):
    """What an answer earns, and whether it solves the task; None where nobody says."""

    reward: float
    success: bool | None


class SingleTurn:
    """Shows the question, grades the team's answer, ends.

    Args:
        grade: from the answering agent's text to its grade.
    """

    def __init__(self, task: Task, grade: Callable[[str], Grade]) -> None:
        self.task, self.grade = task, grade

    async def reset(self) -> Observation:
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        grade = self.grade(text_said(actions.answer))
        return Step(Observation(""), grade.reward, terminated=True, success=grade.success)

    async def close(self) -> None:
        return None
