"""Scripted policy for question-answering environments: any agent gives the correct answer or declines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marft.common.types import Task
from marft.envs.scripted_policy import PolicyInput

WRONG_ANSWER = "I do not know."


@dataclass(frozen=True, slots=True)
class OraclePolicy:
    r"""Gives the correct answer in a box with probability ``skill``, else a wrong reply; chooses options at random.

    Args:
        get_answer: returns the correct answer to a task.
        skill: probability of the correct answer.
    """

    get_answer: Callable[[Task], str]
    skill: float = 1.0

    def __call__(self, policy_input: PolicyInput) -> str:
        """Return the reply, the same for every agent."""
        if policy_input.options:
            return policy_input.random.choice(policy_input.options)
        return (
            f"\\boxed{{{self.get_answer(policy_input.task)}}}"
            if policy_input.random.random() < self.skill
            else WRONG_ANSWER
        )
