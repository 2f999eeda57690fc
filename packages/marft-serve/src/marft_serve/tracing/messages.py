"""Messages in the attributes ``gen_ai.input.messages`` and ``gen_ai.output.messages``.

An episode stores prompts as token ids. The messages here are rebuilt from their sources: the observation, the
visible actions and the recipe's texts. They therefore include text that a channel shortened or a full context
dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from marft.agents.rendering import Message, arguments_of, compose
from marft.common.thoughts import bare_thought, thought
from marft.common.types import Action, Episode, ToolCall
from marft_serve.tracing.cast import Cast
from marft_serve.tracing.span import plain
from marft_serve.tracing.turns import Turn, turns_of

Part = dict[str, object]


def call_id(action: Action, call: ToolCall) -> str:
    """Return the id of a tool call, unique in its trace."""
    return f"{action.id}#{call.index}"


def asked(episode: Episode, action: Action, known: Mapping[str, Action], cast: Cast) -> list[dict[str, object]]:
    """Return the messages before an action, without the recipe's instructions.

    With memory, they include the agent's own earlier actions.

    Args:
        episode: the episode.
        action: the action.
        known: actions of the episode, by id.
        cast: metadata about the agents.
    """
    messages: list[dict[str, object]] = []
    for earlier in [*(known[name] for name in action.continues if name in known), action]:
        profile = replace(cast.seat(action.agent, action.policy).profile, instructions="")
        seen = [Message(known[name].agent, plain(known[name].message)) for name in earlier.sees if name in known]
        told = compose(profile, plain(_observed(episode, earlier)), seen)
        messages += [{"role": one["role"], "parts": [_text(one["content"])]} for one in told]
        if earlier is not action:
            for turn in turns_of(earlier, earlier.started, earlier.ended):
                messages += exchange(earlier, turn)
    return messages


def exchange(action: Action, turn: Turn) -> list[dict[str, object]]:
    """Return the messages for a turn and its tool results."""
    messages: list[dict[str, object]] = [{"role": "assistant", "parts": parts(action, turn)}]
    named = [call for call in turn.calls if call.name]
    if named:
        answers = [
            {"type": "tool_call_response", "id": call_id(action, call), "response": plain(call.output)}
            for call in named
        ]
        messages.append({"role": "tool", "parts": answers})
    return messages


def parts(action: Action, turn: Turn) -> list[Part]:
    """Return the parts for a turn's message: reasoning, text and tool calls."""
    size = thought(turn.text)
    found: list[Part] = []
    if size:
        own = bare_thought(turn.text[:size])
        found.append({"type": "reasoning", "content": plain(own)})
    if turn.text[size:] or not (size or turn.calls):
        found.append(_text(turn.text[size:]))
    for call in turn.calls:
        if call.name:
            arguments = _arguments(call.arguments)
            found.append(
                {"type": "tool_call", "id": call_id(action, call), "name": plain(call.name), "arguments": arguments}
            )
    return found


def text_message(role: str, text: str) -> dict[str, object]:
    """Return a message with a single text part."""
    return {"role": role, "parts": [_text(text)]}


def as_json(messages: Sequence[Mapping[str, object]]) -> str:
    """Serialize messages to JSON, for an attribute."""
    return json.dumps(messages, ensure_ascii=False)


def _text(text: str) -> Part:
    return {"type": "text", "content": plain(text)}


def _arguments(text: str) -> object:
    """Return the arguments as an object, or as text if invalid."""
    whole = plain(text)
    found = arguments_of(whole)
    return found if found or whole.strip() == "{}" else whole


def _observed(episode: Episode, action: Action) -> str:
    """Return the agent's observation at a step; empty for the last step of a failed episode, which has no record."""
    if action.step < len(episode.transitions):
        return episode.transitions[action.step].observation.seen_by(action.agent)
    return episode.task.prompt if action.step == 0 else ""
