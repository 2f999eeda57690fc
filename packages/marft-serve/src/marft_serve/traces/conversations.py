"""Conversations in fine-tuning files and logs: one ``{"messages": […]}`` per line.

Other formats are converted to OpenAI's: Anthropic, ShareGPT, and prompt–completion pairs. The ``name`` of an assistant
message, or ``agent`` in the line, names the agent. Consecutive lines with the same ``episode`` form one episode. A line
may also have two parts, ``{"prompt": […], "completion": […]}``. Then only the messages of the completion are turns.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from marft.common.texts import replace_surrogates
from marft.common.types import Task
from marft_serve.traces.messages import (
    TracedMessage,
    build_chat,
    match_tool_results,
    pair_tool_results,
    parse_message,
    parse_tools,
)
from marft_serve.traces.types import (
    DEFAULT_AGENT_NAME,
    MAX_TURNS,
    SkipCounter,
    TracedEpisode,
    TracedTurn,
    UnreadableError,
)

SHAREGPT_ROLES = {
    "system": "system", "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant",
    "assistant": "assistant", "model": "assistant", "function_call": "function_call", "tool_call": "function_call",
    "function": "tool", "function_response": "tool", "tool": "tool", "tool_response": "tool", "observation": "tool",
}  # fmt: skip
ANTHROPIC_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking")  # content blocks of Anthropic's format
TASK_FIELDS = ("task", "task_id", "id")  # fields for the task, in order of precedence
MAX_MESSAGES = 2048  # maximum number before a turn


def is_conversation(table: Mapping[str, object]) -> bool:
    """Return True for a conversation in any supported format."""
    if any(isinstance(table.get(key), list) for key in ("messages", "conversations", "completion")):
        return True
    return isinstance(table.get("prompt"), str) and isinstance(table.get("completion"), str)


def extract_messages(table: Mapping[str, object]) -> tuple[list[object], list[object]]:
    """Return a line's messages in OpenAI's format: context messages, and possible turns.

    Raises:
        UnreadableError: the format is unknown.
    """
    prompt, completion = table.get("prompt"), table.get("completion")
    if isinstance(completion, str) and isinstance(prompt, str):
        return [{"role": "user", "content": prompt}], [{"role": "assistant", "content": completion}]
    context = list[object]()
    if isinstance(completion, list):
        if not isinstance(prompt, list):
            raise UnreadableError("its prompt is no list of messages")
        context, turns = _convert_messages(prompt), _convert_messages(completion)
    elif isinstance(messages := table.get("messages"), list):
        turns = _convert_messages(messages)
    else:
        conversations = table.get("conversations")
        turns = [_convert_sharegpt(turn) for turn in conversations] if isinstance(conversations, list) else []
    first = (context or turns or [None])[0]
    system = table.get("system")
    if system and not (isinstance(first, Mapping) and first.get("role") in ("system", "developer")):
        context = [{"role": "system", "content": system}, *context]
    return context, turns


def _convert_messages(messages: list[object]) -> list[object]:
    return [converted for message in messages for converted in _convert_blocks(message)]


def _convert_blocks(message: object) -> Iterator[object]:
    """Convert a message with Anthropic content blocks to OpenAI messages.

    Each tool result becomes a separate message. Other messages stay unchanged.
    """
    content = message.get("content") if isinstance(message, Mapping) else None
    entries = content if isinstance(content, list) else []
    blocks: list[tuple[object, Any]] = [
        (entry.get("type") if isinstance(entry, Mapping) else None, entry) for entry in entries
    ]
    if not isinstance(message, Mapping) or not any(kind in ANTHROPIC_BLOCKS for kind, _ in blocks):
        yield message
        return
    for kind, block in blocks:
        if kind == "tool_result":
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": block.get("content")}
    other_blocks = [block for kind, block in blocks if kind not in ANTHROPIC_BLOCKS]
    calls = [
        {"id": block.get("id"), "function": {"name": block.get("name"), "arguments": block.get("input")}}
        for kind, block in blocks
        if kind == "tool_use"
    ]
    thoughts = [str(block.get("thinking") or "") for kind, block in blocks if kind == "thinking"]
    if other_blocks or calls or thoughts:
        yield {
            **message,
            "content": other_blocks or None,
            "tool_calls": calls,
            "reasoning_content": "\n".join(thoughts),
        }


def _convert_sharegpt(turn: object) -> object:
    """Convert a ShareGPT turn, ``{"from": …, "value": …}``, to an OpenAI message.

    A message without ``from`` stays unchanged.

    Raises:
        UnreadableError: the sender is unknown, or a tool call is not JSON.
    """
    if not isinstance(turn, Mapping) or "from" not in turn:
        return turn
    role, value = SHAREGPT_ROLES.get(str(turn["from"]).lower(), ""), turn.get("value")
    if not role:
        raise UnreadableError(f"a message is from {str(turn['from'])[:40]!r}")
    more = {key: turn[key] for key in ("name", "weight") if key in turn}
    if role != "function_call":
        return {"role": role, "content": value, **more}
    try:
        calls = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"a call is no JSON: {str(value)[:80]!r}") from error
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": call} for call in (calls if isinstance(calls, list) else [calls])],
        **more,
    }


def iter_episodes(
    lines: Iterable[tuple[str, Mapping[str, object]]], skip_counter: SkipCounter
) -> Iterator[TracedEpisode]:
    """Yield a file's episodes as soon as each is complete.

    Args:
        lines: place and object of each line.
        skip_counter: counter of skipped items.
    """
    open_name, number, current = "", 0, None
    for location, table in lines:
        episode = parse_episode(table, location, skip_counter)
        if episode is None:
            continue
        name = _to_text(table.get("episode"))
        if current and name and name == open_name:
            number += 1
            current = _extend_episode(current, episode, number, skip_counter)
            continue
        if current:
            yield current
        open_name, number, current = name, 0, episode
    if current:
        yield current


def parse_episode(table: Mapping[str, object], location: str, skip_counter: SkipCounter) -> TracedEpisode | None:
    """Return a line's episode, or None without a turn to learn from."""
    messages = list[TracedMessage]()
    try:
        prompt, completion = extract_messages(table)
        for message in (*prompt, *completion):
            messages.append(parse_message(message))
    except UnreadableError as error:
        skip_counter.skip("line", str(error), f"{location} message {len(messages) + 1}")
        return None
    messages = match_tool_results(messages)
    default = _to_text(table.get("agent")) or _to_text(table.get("role")) or DEFAULT_AGENT_NAME
    named = [replace(m, name=m.name or default) if m.role == "assistant" else m for m in messages]
    turns = list(_iter_turns(named, len(prompt), table, location, skip_counter))
    if not turns:
        skip_counter.skip("line", "no assistant says anything in it that could be read", location)
        return None
    metadata, origin = table.get("metadata"), table.get("from")
    source = origin if isinstance(origin, Mapping) else {}
    return TracedEpisode(
        id=_to_text(table.get("episode")) or _to_text(table.get("id")) or location,
        turns=tuple(turns),
        task=parse_task(next((table[key] for key in TASK_FIELDS if table.get(key) is not None), "")),
        answer=next((turn.text for turn in reversed(turns) if not turn.calls), ""),
        reward=parse_reward(table.get("reward")),
        seed=_parse_count(source.get("seed")),
        attempt=_parse_count(source.get("attempt")),
        metadata={_to_text(k): _to_text(v) for k, v in metadata.items()} if isinstance(metadata, Mapping) else {},
        location=location,
    )


def _iter_turns(
    messages: Sequence[TracedMessage], first: int, table: Mapping[str, object], location: str, skip_counter: SkipCounter
) -> Iterator[TracedTurn]:
    """Yield a conversation's turns.

    Args:
        messages: messages of the conversation.
        first: index of the first message that may be a turn.
        table: the line.
        location: file and line number.
        skip_counter: counter of skipped items.
    """
    tools = parse_tools(table.get("tools") or table.get("functions"))
    results = {message.tool_call_id: message.text for message in messages if message.role == "tool"}
    numbers = [number for number, message in enumerate(messages) if message.role == "assistant" and number >= first]
    for number in numbers[MAX_TURNS:]:
        skip_counter.skip(
            "turn", f"its conversation has more than {MAX_TURNS} turns", f"{location} message {number + 1}"
        )
    for number in numbers[:MAX_TURNS]:
        message = messages[number]
        if number > MAX_MESSAGES:  # each turn stores its whole prompt
            reason = f"more than {MAX_MESSAGES} messages stand before it"
            skip_counter.skip("turn", reason, f"{location} message {number + 1}")
            continue
        try:
            prompt = build_chat(messages[:number], message.name)
        except UnreadableError as error:
            skip_counter.skip("turn", str(error), f"{location} message {number + 1}")
            continue
        calls, missing_results = pair_tool_results(
            message.calls, {n: results[call.id] for n, call in enumerate(message.calls) if call.id in results}
        )
        yield TracedTurn(
            id=str(number),
            names=(message.name,),
            messages=prompt,
            text=message.text,
            reasoning=message.reasoning,
            calls=calls,
            missing_results=missing_results,
            tools=tools,
            model=_to_text(table.get("model")),
            weight=message.weight,
            location=location,
        )


def _extend_episode(
    episode: TracedEpisode, later: TracedEpisode, number: int, skip_counter: SkipCounter
) -> TracedEpisode:
    """Return an episode extended by a later line, the ``number``-th after its first."""
    room = MAX_TURNS - len(episode.turns)
    for turn in later.turns[room:]:
        skip_counter.skip("turn", f"its episode has more than {MAX_TURNS} turns", turn.location)
    return replace(
        episode,
        turns=(*episode.turns, *(replace(turn, id=f"{number}/{turn.id}") for turn in later.turns[:room])),
        task=episode.task or later.task,
        answer=later.answer or episode.answer,  # a line that ends with tool calls has no answer
        reward=episode.reward if later.reward is None else later.reward,
    )


def parse_task(value: object) -> str | Task:
    """Return the task of a trace: its id, or the whole task."""
    if isinstance(value, Mapping) and isinstance(value.get("prompt"), str):
        data = value.get("data")
        prompt = replace_surrogates(value["prompt"])
        return Task(_to_text(value.get("id")) or prompt, prompt, dict(data) if isinstance(data, Mapping) else {})
    return _to_text(value)


def parse_reward(value: object) -> float | None:
    """Convert a value to a finite number or None.

    >>> parse_reward(1), parse_reward("0.5"), parse_reward(True), parse_reward("good"), parse_reward(float("nan"))
    (1.0, 0.5, 1.0, None, None)
    """
    try:
        reward = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return reward if math.isfinite(reward) else None


def _parse_count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _to_text(value: object) -> str:
    return (
        replace_surrogates(str(value))[:1000]
        if isinstance(value, str | int | float) and not isinstance(value, bool)
        else ""
    )
