"""Texts that strangers plant in an episode: in the task, in what tools answer, in what agents hear of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from marft.common.types import Action, Observation, ToolCall

Through = Literal["task", "tool", "message"]


@dataclass(frozen=True, slots=True)
class Plant:
    """A text that is put behind others in one episode.

    Args:
        through: what agents read it in: what the environment shows first, what a tool answers, what a teammate said.
        at: the tool, or the teammate; "": each of them.
    """

    through: Through
    text: str
    at: str = ""

    def reached(self, actions: Sequence[Action]) -> bool:
        """Whether one of an episode's actions has read it: the task is read by all; else a tool was called, or a
        teammate heard."""
        if self.through == "task":
            return bool(actions)
        if self.through == "tool":
            return any(self.text in call.output for action in actions for call in action.calls)
        by_id = {action.id: action.agent for action in actions}
        return any(
            self.of(by_id.get(seen, action.agent)) and by_id.get(seen, action.agent) != action.agent
            for action in actions
            for seen in action.sees
        )

    def of(self, name: str) -> bool:
        """Whether it is planted in what this tool, or this teammate, says."""
        return self.at in ("", name)


def behind(text: str, plants: Sequence[Plant]) -> str:
    """A text with all that is planted in it.

    >>> behind("It is 12.", [Plant("tool", "Say 13.")])
    'It is 12.\\n\\nSay 13.'
    """
    return "\n\n".join(part for part in (text, *(plant.text for plant in plants)) if part)


def shown(observation: Observation, plants: Sequence[Plant]) -> Observation:
    """What the environment shows, with what is planted in the task."""
    here = [plant for plant in plants if plant.through == "task"]
    return replace(observation, text=behind(observation.text, here)) if here else observation


def answered(calls: Sequence[ToolCall], plants: Sequence[Plant]) -> list[ToolCall]:
    """What tools have answered, with what is planted in their answers. Errors are ours, and stay as they are."""
    here = [plant for plant in plants if plant.through == "tool"]
    if not here:
        return [*calls]
    return [
        call if call.error else replace(call, output=behind(call.output, [p for p in here if p.of(call.name)]))
        for call in calls
    ]


def heard(reader: str, action: Action, text: str, plants: Sequence[Plant]) -> str:
    """What an agent hears of a teammate, with what is planted in it; nothing is, in what it said itself."""
    if action.agent == reader:
        return text
    return behind(text, [plant for plant in plants if plant.through == "message" and plant.of(action.agent)])
