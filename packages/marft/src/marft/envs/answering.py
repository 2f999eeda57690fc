"""Who plays worlds of questions and answers without a model: whoever is asked knows the answer, or guesses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from marft.common.types import Task
from marft.envs.scripts import Cue

WRONG = "I do not know."


@dataclass(frozen=True, slots=True)
class Answering:
    r"""Says the right answer, in a box; else, as often as ``skill`` leaves, that it does not know.

    Args:
        right: the answer to a task.
    """

    right: Callable[[Task], str]
    skill: float = 1.0

    def __call__(self, cue: Cue) -> str:
        """What any agent says."""
        if cue.options:
            return cue.random.choice(cue.options)
        return f"\\boxed{{{self.right(cue.task)}}}" if cue.random.random() < self.skill else WRONG
