"""Recorded sessions for tests of the shadow."""

from __future__ import annotations

import numpy as np

from marft.common.types import Action, ActionKey, Episode, Task, ToolCall


def session(name: str, text: str = "the answer is 7", *calls: ToolCall, answers: bool = True) -> Episode:
    """A recorded one, in which one agent answered."""
    ids = np.arange(3, dtype=np.int32)
    action = Action(
        key=ActionKey("serve", name, 0, 0, "a", 0), policy="a", index=0, sees=(), prompt=ids, tokens=ids,
        marks=np.zeros(3, np.uint8), log_probs=np.zeros(3, np.float32), text=text, finish="stop", calls=calls,
    )  # fmt: skip
    return Episode(Task(name, f"question {name}"), "serve", 0, (action,), "terminated", answer=action.id * answers)
