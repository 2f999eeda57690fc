"""Split of an action into model turns, each with its text, tool calls, tokens and times."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marft.common.token_data import TokenSource
from marft.common.types import Action, ToolCall

CALL_MARKER = re.compile(r"(?:<[^<>\n]{1,40}>|\[[A-Z_]{1,40}\]|\[)$")  # markup before a tool call in JSON
JSON_DECODER = json.JSONDecoder()
MAX_POSITIONS = 64  # maximum number of positions to check for a tool call


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
