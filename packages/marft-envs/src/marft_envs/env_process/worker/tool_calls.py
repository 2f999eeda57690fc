"""Parser for tool calls in a team's text, and formatting of errors."""

from __future__ import annotations

import json
from typing import Any

START_TAG, END_TAG = "<tool_call>", "</tool_call>"


def split_tool_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Split a text into prose and tool calls ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``.

    A malformed call stays in the prose.

    Returns:
        The text without its calls, and the calls as dicts with ``name`` and ``arguments``.
    """
    prose: list[str] = []
    calls: list[dict[str, Any]] = []
    at = 0
    while (opened := text.find(START_TAG, at)) >= 0:
        closed = text.find(END_TAG, opened)
        inside = text[opened + len(START_TAG) : closed if closed >= 0 else len(text)]
        prose.append(text[at:opened])
        at = closed + len(END_TAG) if closed >= 0 else len(text)
        try:
            call = json.loads(inside)
            # replace lone surrogates
            call = json.loads(json.dumps(call, ensure_ascii=False).encode("utf-8", "replace"))
            calls.append({"name": str(call["name"]), "arguments": call.get("arguments") or {}})
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            prose.append(text[opened:at])
    return "".join((*prose, text[at:])), calls


def format_error(error: object) -> str:
    """Format an error and its chain of causes."""
    cause = getattr(error, "__cause__", None)
    return f"{type(error).__name__}: {error}"[:2000] + (f" ({format_error(cause)})" if cause else "")
