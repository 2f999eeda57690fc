"""Model turns of an action, and messages in the attributes ``gen_ai.input.messages`` and ``gen_ai.output.messages``.

An episode stores prompts as token ids. The messages here are rebuilt from their sources: the observation, the
visible actions and the recipe's texts. They therefore include text that a channel shortened or a full context
dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from marft.agents.prompt_messages import build_messages, parse_arguments
from marft.common.reasoning import measure_reasoning, strip_delimiters
from marft.common.token_data import TokenSource
from marft.common.types import Action, Episode, ToolCall
from marft.config.interfaces.channel import Message
from marft_serve.tracing.span import sanitize_text
from marft_serve.tracing.team_metadata import TeamMetadata

CALL_MARKER = re.compile(r"(?:<[^<>\n]{1,40}>|\[[A-Z_]{1,40}\]|\[)$")  # markup before a tool call in JSON
JSON_DECODER = json.JSONDecoder()
MAX_POSITIONS = 64  # maximum number of positions to check for a tool call
MessagePart = dict[str, object]


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One answer from a model.

    Args:
        text: text of the answer, without tool calls.
        calls: tool calls of the answer.
        prompt_tokens: number of tokens in its prompt; None if unknown.
        completion_tokens: number of its own tokens; None if unknown.
        start_time: start in seconds since the start of the episode.
        end_time: end in seconds since the start of the episode.
        tools_end_time: end of the last tool call, in seconds since the start of the episode.
    """

    text: str
    calls: tuple[ToolCall, ...]
    prompt_tokens: int | None
    completion_tokens: int | None
    start_time: float
    end_time: float
    tools_end_time: float


def split_turns(action: Action, start_time: float, end_time: float) -> list[ModelTurn]:
    """Return an action's turns, oldest first.

    If an action calls tools in between, the end of each turn is not recorded. It is estimated: the time without
    tool calls is divided among the turns in proportion to their tokens.

    Args:
        action: the action.
        start_time: start of the action, in seconds since the start of the episode.
        end_time: end of the action, in seconds since the start of the episode.
    """
    texts = [*action.intermediate_texts, action.text]
    rounds = [tuple(call for call in action.calls if call.round == number) for number in range(len(texts))]
    sizes = _count_tokens(action, len(texts))
    waits = [max((call.seconds for call in calls), default=0.0) for calls in rounds]
    model_seconds = max(0.0, end_time - start_time - sum(waits))
    weights = [size[1] + 1 for size in sizes] if sizes else [1] * len(texts)
    turns, at = list[ModelTurn](), start_time
    for number, (text, calls, wait) in enumerate(zip(texts, rounds, waits, strict=True)):
        turn_end = min(end_time, at + model_seconds * weights[number] / sum(weights))
        tools_end = min(end_time, turn_end + wait)
        if number == len(texts) - 1 and not calls:
            turn_end = tools_end = end_time
        prompt_tokens, completion_tokens = sizes[number] if sizes else (None, None)
        turns.append(
            ModelTurn(strip_tool_calls(text, calls), calls, prompt_tokens, completion_tokens, at, turn_end, tools_end)
        )
        at = tools_end
    return turns


def strip_tool_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """Return the text before the first JSON tool call in a turn; without a call, the whole text.

    >>> strip_tool_calls('I add. <tool_call>{"name": "add", "arguments": {}}</tool_call>', [ToolCall("add")])
    'I add.'
    """
    names = {call.name for call in calls if call.name}
    at = text.find("{") if names else -1
    for _ in range(MAX_POSITIONS):
        if at < 0:
            break
        try:
            parsed, _ = JSON_DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict) and any(isinstance(value, str) and value in names for value in parsed.values()):
            prefix = text[:at].rstrip()
            while marker := CALL_MARKER.search(prefix[-64:]):
                prefix = prefix[: len(prefix) - len(marker[0])].rstrip()
            return prefix
        at = text.find("{", at + 1)
    return text


def _count_tokens(action: Action, turns: int) -> list[tuple[int, int]]:
    """Return the numbers of prompt tokens and own tokens for each turn; empty if the turns cannot be separated."""
    if action.usage is not None:
        return [(action.usage.prompt_tokens, action.usage.completion_tokens)] if turns == 1 else []
    tool_mask = np.equal(action.marks, TokenSource.TOOL)
    after_tools = np.flatnonzero(tool_mask[:-1] & ~tool_mask[1:]) + 1
    starts = sorted({0, *after_tools.tolist(), *(restart.at for restart in action.restarts)})
    if len(starts) != turns:
        return []
    sizes = []
    for start, stop in zip(starts, [*starts[1:], len(action.tokens)], strict=True):
        segment = [candidate for candidate in action.segments if candidate.start <= start][-1]
        sizes.append((len(segment.context) + start - segment.start, int(action.own_mask[start:stop].sum())))
    return sizes


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
