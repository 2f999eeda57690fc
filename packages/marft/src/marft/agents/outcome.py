"""Result from an organization that runs an external program: an answer in the program's words, and a grade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from marft.common.types import Action, ActionKey, JointAction, Step


@dataclass(frozen=True, slots=True)
class Grade:
    """Program's grade for its answer; it replaces the environment's reward."""

    reward: float
    success: bool | None = None
    agent_rewards: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome(JointAction):
    """Joint action whose answer may differ from every agent's text.

    Args:
        text: the answer's text; None uses the answering agent's text.
        grade: the program's grade; None keeps the environment's reward.
    """

    text: str | None = None
    grade: Grade | None = None

    def select_answer(self, actions: Sequence[Action], key: ActionKey) -> Action | None:
        """Return the step's last action with exactly this text, else a placeholder action with the text.

        A placeholder belongs to no agent, and only the environment sees it. Return None without a text.

        Args:
            key: key of the episode and the step.
        """
        if self.text is None:
            return None
        for action in reversed(actions):
            if self.text in (action.text, action.message):
                return action
        nothing = np.empty(0, np.int32)
        return Action(
            key=key,
            policy="",
            index=-1,
            sees=(),
            prompt=nothing,
            tokens=nothing,
            marks=np.empty(0, np.uint8),
            log_probs=np.empty(0, np.float32),
            text=self.text,
            finish="stop",
        )

    def apply_grade(self, step: Step) -> Step:
        """Return the environment's step, with the program's grade in place of its reward."""
        if self.grade is None:
            return step
        return replace(
            step, reward=self.grade.reward, agent_rewards=self.grade.agent_rewards or {}, success=self.grade.success
        )
