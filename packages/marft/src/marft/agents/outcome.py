"""What a team came to whose organization is somebody else's program: an answer in words of its own, and a grade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from marft.common.types import Action, ActionKey, JointAction, Step


@dataclass(frozen=True, slots=True)
class Grade:
    """What a program says that its answer is worth: it stands in place of what the environment pays."""

    reward: float
    success: bool | None = None
    agent_rewards: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome(JointAction):
    """A joint action whose answer need not be what any agent said.

    Args:
        text: the answer in words; None: that of the agent that answers.
    """

    text: str | None = None
    grade: Grade | None = None

    def answer_among(self, done: Sequence[Action], key: ActionKey) -> Action | None:
        """The last of a step's actions that says just this; else the words as an action of nobody, which is shown to
        the environment alone.

        Args:
            key: of the episode and the step.
        """
        if self.text is None:
            return None
        for action in reversed(done):
            if self.text in (action.text, action.message):
                return action
        nothing = np.empty(0, np.int32)
        return Action(
            key=key, policy="", index=-1, sees=(), prompt=nothing, tokens=nothing, marks=np.empty(0, np.uint8),
            log_probs=np.empty(0, np.float32), text=self.text, finish="stop",
        )  # fmt: skip

    def graded(self, step: Step) -> Step:
        """What the environment returned, with the program's own grade in place of its reward."""
        if self.grade is None:
            return step
        return replace(
            step, reward=self.grade.reward, agent_rewards=self.grade.agent_rewards or {}, success=self.grade.success
        )
