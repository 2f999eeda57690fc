"""What agents were asked and said, as ``gen_ai.input.messages`` and ``gen_ai.output.messages`` have it.

An episode keeps what agents read as token ids. The messages are what these were made of: the observation, what was
seen, the recipe's words. What a channel shortened, or a context had no room for, is in them all the same.
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
    """What a call is known by in its trace."""
    return f"{action.id}#{call.index}"


def asked(episode: Episode, action: Action, known: Mapping[str, Action], cast: Cast) -> list[dict[str, object]]:
    """The messages before an action, without the recipe's instructions: with a memory its own earlier actions too.

    Args:
        known: the episode's actions by their ids.
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
    """A turn, and what its tools answered."""
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
    """What a turn is made of: a thought, a text, calls of tools."""
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
    """A message that is a text alone."""
    return {"role": role, "parts": [_text(text)]}


def as_json(messages: Sequence[Mapping[str, object]]) -> str:
    """Messages as the text of an attribute, each of whose own texts is bounded."""
    return json.dumps(messages, ensure_ascii=False)


def _text(text: str) -> Part:
    return {"type": "text", "content": plain(text)}


def _arguments(text: str) -> object:
    """An object, where they are one; else the text that was written."""
    whole = plain(text)
    found = arguments_of(whole)
    return found if found or whole.strip() == "{}" else whole


def _observed(episode: Episode, action: Action) -> str:
    """What an agent was shown at a step; of the step that a failed episode ended in nothing is recorded."""
    if action.step < len(episode.transitions):
        return episode.transitions[action.step].observation.seen_by(action.agent)
    return episode.task.prompt if action.step == 0 else ""
