"""Scripted policy for question-answering environments: any agent gives the correct answer or declines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marft.common.types import Task
from marft.envs.scripts import Cue

WRONG = "I do not know."


@dataclass(frozen=True, slots=True)
class Answering:
    r"""Gives the correct answer in a box with probability ``skill``, else a wrong reply; chooses options at random.

    Args:
        right: returns the correct answer to a task.
        skill: probability of the correct answer.
    """

    right: Callable[[Task], str]
    skill: float = 1.0

    def __call__(self, cue: Cue) -> str:
        """Return the reply, the same for every agent."""
        if cue.options:
            return cue.random.choice(cue.options)
        return f"\\boxed{{{self.right(cue.task)}}}" if cue.random.random() < self.skill else WRONG
