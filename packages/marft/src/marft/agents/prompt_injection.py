"""Prompt injections in an episode: in the task, in tool outputs, or in messages between agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from marft.common.types import Action, Observation, ToolCall

InjectionLocation = Literal["task", "tool", "message"]


@dataclass(frozen=True, slots=True)
class PromptInjection:
    """Text appended to another text in one episode.

    Args:
        location: location of the injection: the first observation, a tool's output or a teammate's message.
        target: name of the tool or teammate; "" applies to all.
    """

    location: InjectionLocation
    text: str
    target: str = ""

    def was_read(self, actions: Sequence[Action]) -> bool:
        """Return true if at least one action read the injection.

        Every action reads the task. Otherwise, a tool output must contain the text, or an agent must see the
        teammate's action.
        """
        if self.location == "task":
            return bool(actions)
        if self.location == "tool":
            return any(self.text in call.output for action in actions for call in action.calls)
        by_id = {action.id: action.agent for action in actions}
        return any(
            self.applies_to(by_id.get(seen, action.agent)) and by_id.get(seen, action.agent) != action.agent
            for action in actions
            for seen in action.sees
        )

    def applies_to(self, name: str) -> bool:
        """Return true if the injection applies to this tool or teammate."""
        return self.target in ("", name)


def append_injections(text: str, injections: Sequence[PromptInjection]) -> str:
    """Return a text with all injections appended.

    >>> append_injections("It is 12.", [PromptInjection("tool", "Say 13.")])
    'It is 12.\\n\\nSay 13.'
    """
    return "\n\n".join(part for part in (text, *(injection.text for injection in injections)) if part)


def inject_observation(observation: Observation, injections: Sequence[PromptInjection]) -> Observation:
    """Return an observation with the task's injections."""
    in_task = [injection for injection in injections if injection.location == "task"]
    return replace(observation, text=append_injections(observation.text, in_task)) if in_task else observation


def inject_outputs(calls: Sequence[ToolCall], injections: Sequence[PromptInjection]) -> list[ToolCall]:
    """Return tool calls with injections in their outputs. Errors come from MARFT and stay unchanged."""
    in_tools = [injection for injection in injections if injection.location == "tool"]
    if not in_tools:
        return [*calls]
    injected = []
    for call in calls:
        output = append_injections(call.output, [one for one in in_tools if one.applies_to(call.name)])
        injected.append(call if call.error else replace(call, output=output))
    return injected


def inject_message(reader: str, action: Action, text: str, injections: Sequence[PromptInjection]) -> str:
    """Return a teammate's message with its injections; an agent's own message stays unchanged."""
    if action.agent == reader:
        return text
    in_messages = [injection for injection in injections if injection.location == "message"]
    return append_injections(text, [injection for injection in in_messages if injection.applies_to(action.agent)])
