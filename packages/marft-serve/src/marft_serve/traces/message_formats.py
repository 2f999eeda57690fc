"""Conversion from other message formats to OpenAI's: Anthropic, ShareGPT, and prompt–completion pairs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from marft_serve.traces.types import UnreadableError

SHAREGPT_ROLES = {
    "system": "system", "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant",
    "assistant": "assistant", "model": "assistant", "function_call": "function_call", "tool_call": "function_call",
    "function": "tool", "function_response": "tool", "tool": "tool", "tool_response": "tool", "observation": "tool",
}  # fmt: skip
ANTHROPIC_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking")  # content blocks of Anthropic's format


def is_conversation(table: Mapping[str, Any]) -> bool:
    """Return True for a conversation in any supported format."""
    if any(isinstance(table.get(key), list) for key in ("messages", "conversations", "completion")):
        return True
    return isinstance(table.get("prompt"), str) and isinstance(table.get("completion"), str)


def extract_messages(table: Mapping[str, Any]) -> tuple[list[object], list[object]]:
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
    elif isinstance(table.get("messages"), list):
        turns = _convert_messages(table["messages"])
    else:
        turns = [_convert_sharegpt(turn) for turn in table["conversations"]]
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
