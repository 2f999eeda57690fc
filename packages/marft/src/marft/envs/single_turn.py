"""Question-answering sessions with a single step and a graded answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from marft.agents.answers import graded_text
from marft.common.types import JointAction, Observation, Step, Task


class Grade(NamedTuple):
    """Reward for an answer, and whether the answer solves the task; None if unknown."""

    reward: float
    success: bool | None


class SingleTurn:
    """Session that shows the question, grades the team's answer, and ends.

    Args:
        grade: returns the grade of the answering agent's text.
    """

    def __init__(self, task: Task, grade: Callable[[str], Grade]) -> None:
        self.task, self.grade = task, grade

    async def reset(self) -> Observation:
        """Return the question."""
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        """Grade the team's answer and end the episode."""
        grade = self.grade(graded_text(actions.answer))
        return Step(Observation(""), grade.reward, terminated=True, success=grade.success)

    async def close(self) -> None:
        return None
