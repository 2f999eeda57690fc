"""Sessions with revisions: the team sees its last answer, until it submits the answer or the steps run out."""

from __future__ import annotations

import re
from collections.abc import Callable

from marft.agents.answers import stated_answer, states_answer, text_said
from marft.common.types import JointAction, Observation, Step, Task
from marft.envs.single_turn import Grade


class Revising:
    """Session that grades the team's last answer.

    A step's reward is its change of the grade, so an episode's return equals the last answer's grade. Spoiling a
    correct answer costs the reward it had earned.

    Args:
        grade: returns the grade of the answering agent's text.
        steps: maximum steps of an episode.
        done: word on a line of its own in the answering agent's text that ends the episode; "" disables it.
    """

    def __init__(self, task: Task, grade: Callable[[str], Grade], steps: int, done: str) -> None:
        self.task, self.grade, self.steps = task, grade, steps
        self._done = re.compile(rf"^[^\w\n]*{re.escape(done)}[^\w\n]*$", re.IGNORECASE | re.MULTILINE) if done else None
        self._word = done
        self._said, self._graded, self._taken = "", Grade(0.0, False), 0

    async def reset(self) -> Observation:
        """Return the task."""
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        """Grade the team's answer and return the next observation."""
        text = text_said(actions.answer)
        self._taken += 1
        handed_in = bool(self._done and self._done.search(text))
        before = self._graded
        if states_answer(text) or not (self._said or handed_in):  # otherwise the previous answer stands
            self._said, self._graded = text, self.grade(text)
        over = handed_in or self._taken == self.steps
        now = self._graded
        info = {"progress": min(max(now.reward, 0.0), 1.0)}
        shown = Observation("" if over else self._again())
        return Step(shown, now.reward - before.reward, terminated=over, success=now.success, info=info)

    def _again(self) -> str:
        """Return the task with the last answer, without revealing its correctness."""
        how = f" Write {self._word} on a line of its own to hand it in." if self._done else ""
        answer = stated_answer(self._said) if states_answer(self._said) else "none"
        return f"{self.task.prompt}\n\nYour team's answer so far: {answer}\nCheck it. Keep it or correct it.{how}"

    async def close(self) -> None:
        return None
