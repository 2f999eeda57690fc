"""Calls of tools as a team writes them in its text, and errors as they are told."""

from __future__ import annotations

import json
from typing import Any

OPENS, CLOSES = "<tool_call>", "</tool_call>"


def called(text: str) -> tuple[str, list[dict[str, Any]]]:
    """A text without the calls in it, ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, and the calls: names,
    and tables of arguments. What is opened there and is none stays as it is."""
    said: list[str] = []
    calls: list[dict[str, Any]] = []
    at = 0
    while (opened := text.find(OPENS, at)) >= 0:
        closed = text.find(CLOSES, opened)
        inside = text[opened + len(OPENS) : closed if closed >= 0 else len(text)]
        said.append(text[at:opened])
        at = closed + len(CLOSES) if closed >= 0 else len(text)
        try:
            call = json.loads(inside)
            call = json.loads(json.dumps(call, ensure_ascii=False).encode("utf-8", "replace"))  # no lone surrogates
            calls.append({"name": str(call["name"]), "arguments": call.get("arguments") or {}})
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            said.append(text[opened:at])
    return "".join((*said, text[at:])), calls


def described(error: object) -> str:
    """An error, and what it came of."""
    cause = getattr(error, "__cause__", None)
    return f"{type(error).__name__}: {error}"[:2000] + (f" ({described(cause)})" if cause else "")
