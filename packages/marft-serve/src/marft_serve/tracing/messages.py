"""Messages in the attributes ``gen_ai.input.messages`` and ``gen_ai.output.messages``.

An episode stores prompts as token ids. The messages here are rebuilt from their sources: the observation, the
visible actions and the recipe's texts. They therefore include text that a channel shortened or a full context
dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from marft.agents.prompt_messages import Message, build_messages, parse_arguments
from marft.common.reasoning import measure_reasoning, strip_delimiters
from marft.common.types import Action, Episode, ToolCall
from marft_serve.tracing.span import sanitize_text
from marft_serve.tracing.team_metadata import TeamMetadata
from marft_serve.tracing.turns import ModelTurn, split_turns

MessagePart = dict[str, object]


def build_call_id(action: Action, call: ToolCall) -> str:
    """Return the id of a tool call, unique in its trace."""
    return f"{action.id}#{call.index}"


def build_prompt_messages(
    episode: Episode, action: Action, actions_by_id: Mapping[str, Action], team: TeamMetadata
) -> list[dict[str, object]]:
    """Return the messages before an action, without the recipe's instructions.

    With memory, they include the agent's own earlier actions.

    Args:
        episode: the episode.
        action: the action.
        actions_by_id: actions of the episode, by id.
        team: metadata about the agents.
    """
    messages: list[dict[str, object]] = []
    for earlier in [*(actions_by_id[name] for name in action.continues if name in actions_by_id), action]:
        profile = replace(team.get_agent(action.agent, action.policy).profile, instructions="")
        seen = [
            Message(actions_by_id[name].agent, sanitize_text(actions_by_id[name].message))
            for name in earlier.sees
            if name in actions_by_id
        ]
        prompt = build_messages(profile, sanitize_text(_get_observation(episode, earlier)), seen)
        messages += [{"role": message["role"], "parts": [_build_text_part(message["content"])]} for message in prompt]
        if earlier is not action:
            for turn in split_turns(earlier, earlier.started, earlier.ended):
                messages += build_turn_messages(earlier, turn)
    return messages


def build_turn_messages(action: Action, turn: ModelTurn) -> list[dict[str, object]]:
    """Return the messages for a turn and its tool results."""
    messages: list[dict[str, object]] = [{"role": "assistant", "parts": build_parts(action, turn)}]
    named_calls = [call for call in turn.calls if call.name]
    if named_calls:
        results = [
            {"type": "tool_call_response", "id": build_call_id(action, call), "response": sanitize_text(call.output)}
            for call in named_calls
        ]
        messages.append({"role": "tool", "parts": results})
    return messages


def build_parts(action: Action, turn: ModelTurn) -> list[MessagePart]:
    """Return the parts for a turn's message: reasoning, text and tool calls."""
    size = measure_reasoning(turn.text)
    message_parts: list[MessagePart] = []
    if size:
        reasoning = strip_delimiters(turn.text[:size])
        message_parts.append({"type": "reasoning", "content": sanitize_text(reasoning)})
    if turn.text[size:] or not (size or turn.calls):
        message_parts.append(_build_text_part(turn.text[size:]))
    for call in turn.calls:
        if call.name:
            arguments = _parse_arguments(call.arguments)
            message_parts.append(
                {
                    "type": "tool_call",
                    "id": build_call_id(action, call),
                    "name": sanitize_text(call.name),
                    "arguments": arguments,
                }
            )
    return message_parts


def build_text_message(role: str, text: str) -> dict[str, object]:
    """Return a message with a single text part."""
    return {"role": role, "parts": [_build_text_part(text)]}


def to_json(messages: Sequence[Mapping[str, object]]) -> str:
    """Serialize messages to JSON, for an attribute."""
    return json.dumps(messages, ensure_ascii=False)


def _build_text_part(text: str) -> MessagePart:
    return {"type": "text", "content": sanitize_text(text)}


def _parse_arguments(text: str) -> object:
    """Return the arguments as an object, or as text if invalid."""
    sanitized = sanitize_text(text)
    parsed = parse_arguments(sanitized)
    return parsed if parsed or sanitized.strip() == "{}" else sanitized


def _get_observation(episode: Episode, action: Action) -> str:
    """Return the agent's observation at a step; empty for the last step of a failed episode, which has no record."""
    if action.step < len(episode.transitions):
        return episode.transitions[action.step].observation.for_role(action.agent)
    return episode.task.prompt if action.step == 0 else ""
