"""Split of an action into model turns, each with its text, tool calls, tokens and times."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marft.common.marks import Mark
from marft.common.types import Action, ToolCall

MARKER = re.compile(r"(?:<[^<>\n]{1,40}>|\[[A-Z_]{1,40}\]|\[)$")  # markup before a tool call in JSON
JSON = json.JSONDecoder()
LOOKED_AT = 64  # maximum number of positions to check for a tool call


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer from a model.

    Args:
        text: text of the answer, without tool calls.
        calls: tool calls of the answer.
        asked: number of tokens in its prompt; None if unknown.
        said: number of its own tokens; None if unknown.
        started: start in seconds since the start of the episode.
        ended: end in seconds since the start of the episode.
        tools_until: end of the last tool call, in seconds since the start of the episode.
    """

    text: str
    calls: tuple[ToolCall, ...]
    asked: int | None
    said: int | None
    started: float
    ended: float
    tools_until: float


def turns_of(action: Action, started: float, ended: float) -> list[Turn]:
    """Return an action's turns, oldest first.

    If an action calls tools in between, the end of each turn is not recorded. It is estimated: the time without
    tool calls is divided among the turns in proportion to their tokens.

    Args:
        action: the action.
        started: start of the action, in seconds since the start of the episode.
        ended: end of the action, in seconds since the start of the episode.
    """
    texts = [*action.intermediate_texts, action.text]
    rounds = [tuple(call for call in action.calls if call.round == number) for number in range(len(texts))]
    sizes = _sizes(action, len(texts))
    waits = [max((call.seconds for call in calls), default=0.0) for calls in rounds]
    left = max(0.0, ended - started - sum(waits))
    weights = [size[1] + 1 for size in sizes] if sizes else [1] * len(texts)
    turns, at = list[Turn](), started
    for number, (text, calls, wait) in enumerate(zip(texts, rounds, waits, strict=True)):
        over = min(ended, at + left * weights[number] / sum(weights))
        until = min(ended, over + wait)
        if number == len(texts) - 1 and not calls:
            over = until = ended
        asked, said = sizes[number] if sizes else (None, None)
        turns.append(Turn(beside_calls(text, calls), calls, asked, said, at, over, until))
        at = until
    return turns


def beside_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """Return the text before the first JSON tool call in a turn; without a call, the whole text.

    >>> beside_calls('I add. <tool_call>{"name": "add", "arguments": {}}</tool_call>', [ToolCall("add")])
    'I add.'
    """
    names = {call.name for call in calls if call.name}
    at = text.find("{") if names else -1
    for _ in range(LOOKED_AT):
        if at < 0:
            break
        try:
            found, _ = JSON.raw_decode(text, at)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and any(isinstance(one, str) and one in names for one in found.values()):
            said = text[:at].rstrip()
            while marker := MARKER.search(said[-64:]):
                said = said[: len(said) - len(marker[0])].rstrip()
            return said
        at = text.find("{", at + 1)
    return text


def _sizes(action: Action, turns: int) -> list[tuple[int, int]]:
    """Return the numbers of prompt tokens and own tokens for each turn; empty if the turns cannot be separated."""
    if action.usage is not None:
        return [(action.usage.prompt_tokens, action.usage.completion_tokens)] if turns == 1 else []
    told = np.equal(action.marks, Mark.TOOL)
    after_tools = np.flatnonzero(told[:-1] & ~told[1:]) + 1
    starts = sorted({0, *after_tools.tolist(), *(restart.at for restart in action.restarts)})
    if len(starts) != turns:
        return []
    sizes = []
    for start, stop in zip(starts, [*starts[1:], len(action.tokens)], strict=True):
        segment = [one for one in action.segments if one.start <= start][-1]
        sizes.append((len(segment.context) + start - segment.start, int(action.own[start:stop].sum())))
    return sizes
