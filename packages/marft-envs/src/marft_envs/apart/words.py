"""What a package's environments show, in words: messages, tools and measures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

# told once, with the first prompt
TOOLS = 'Tools, called as <tool_call>{{"name": NAME, "arguments": {{…}}}}</tool_call>:\n{}'
MOST = 1e300  # what is beyond it, or no number, is not measured


def described(tool: Mapping[str, Any]) -> str:
    """A tool in one line or two: its name, what it does, and its arguments as a JSON schema, where it has any.

    >>> described({"name": "add", "description": "Adds.", "parameters": {"properties": {"a": {"type": "number"}}}})
    'add: Adds. Arguments: {"properties":{"a":{"type":"number"}}}'
    """
    schema = tool.get("parameters") or {}
    said = f"{tool['name']}: {tool.get('description') or ''}".rstrip()
    if not schema.get("properties"):
        return said
    return f"{said} Arguments: {json.dumps(schema, ensure_ascii=False, separators=(',', ':'))}"


def told(messages: Sequence[Mapping[str, str]]) -> str:
    """Messages as one text; who speaks is said where that is not the user alone.

    >>> told([{"role": "user", "content": "2 + 3?"}])
    '2 + 3?'
    """
    if all(message["role"] in ("user", "system", "tool") for message in messages):
        return "\n\n".join(message["content"] for message in messages if message["content"])
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def measures(metrics: object) -> dict[str, float]:
    """Metrics of a rubric that are numbers, by names that a metric of ours can have."""
    if not isinstance(metrics, dict):
        return {}
    named = {re.sub(r"\W", "_", str(name))[:64]: value for name, value in metrics.items()}
    numbers = {name: value for name, value in named.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if -MOST < value < MOST}
