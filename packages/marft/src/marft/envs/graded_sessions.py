"""Sessions with a graded answer: a single step, or several in which the team revises its answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from marft.agents.answers import extract_answer, graded_text, has_answer
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


class RevisionSession:
    """Session that grades the team's last answer.

    A step's reward is its change of the grade, so an episode's return equals the last answer's grade. Spoiling a
    correct answer costs the reward it had earned.

    Args:
        grade: returns the grade of the answering agent's text.
        steps: maximum steps of an episode.
        stop_word: word on a line of its own in the answering agent's text that ends the episode; "" disables it.
    """

    def __init__(self, task: Task, grade: Callable[[str], Grade], steps: int, stop_word: str) -> None:
        self.task, self.grade, self.steps = task, grade, steps
        stop_line = rf"^[^\w\n]*{re.escape(stop_word)}[^\w\n]*$"
        self._stop_pattern = re.compile(stop_line, re.IGNORECASE | re.MULTILINE) if stop_word else None
        self._stop_word = stop_word
        self._last_answer, self._last_grade, self._num_steps = "", Grade(0.0, False), 0

    async def reset(self) -> Observation:
        """Return the task."""
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        """Grade the team's answer and return the next observation."""
        text = graded_text(actions.answer)
        self._num_steps += 1
        is_submitted = bool(self._stop_pattern and self._stop_pattern.search(text))
        previous = self._last_grade
        if has_answer(text) or not (self._last_answer or is_submitted):  # otherwise the previous answer stands
            self._last_answer, self._last_grade = text, self.grade(text)
        is_done = is_submitted or self._num_steps == self.steps
        grade = self._last_grade
        info = {"progress": min(max(grade.reward, 0.0), 1.0)}
        observation = Observation("" if is_done else self._revision_prompt())
        return Step(observation, grade.reward - previous.reward, terminated=is_done, success=grade.success, info=info)

    def _revision_prompt(self) -> str:
        """Return the task with the last answer, without revealing its correctness."""
        instruction = f" Write {self._stop_word} on a line of its own to hand it in." if self._stop_pattern else ""
        answer = extract_answer(self._last_answer) if has_answer(self._last_answer) else "none"
        return (
            f"{self.task.prompt}\n\nYour team's answer so far: {answer}\nCheck it. Keep it or correct it.{instruction}"
        )

    async def close(self) -> None:
        return None
