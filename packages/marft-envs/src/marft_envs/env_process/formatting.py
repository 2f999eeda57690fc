"""Text forms of messages, tools and metrics from a package's environments."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

# shown once, with the first prompt
TOOLS_TEMPLATE = 'Tools, called as <tool_call>{{"name": NAME, "arguments": {{…}}}}</tool_call>:\n{}'
MAX_METRIC = 1e300  # metrics with a larger magnitude, and values that are not numbers, are dropped


def format_tool(tool: Mapping[str, Any]) -> str:
    """Describe a tool in one or two lines: name, description, and any arguments as a JSON schema.

    >>> format_tool({"name": "add", "description": "Adds.", "parameters": {"properties": {"a": {"type": "number"}}}})
    'add: Adds. Arguments: {"properties":{"a":{"type":"number"}}}'
    """
    schema = tool.get("parameters") or {}
    text = f"{tool['name']}: {tool.get('description') or ''}".rstrip()
    if not schema.get("properties"):
        return text
    return f"{text} Arguments: {json.dumps(schema, ensure_ascii=False, separators=(',', ':'))}"


def format_messages(messages: Sequence[Mapping[str, str]]) -> str:
    """Join messages into one text; roles are named if a role besides user, system and tool occurs.

    >>> format_messages([{"role": "user", "content": "2 + 3?"}])
    '2 + 3?'
    """
    if all(message["role"] in ("user", "system", "tool") for message in messages):
        return "\n\n".join(message["content"] for message in messages if message["content"])
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def clean_metrics(metrics: object) -> dict[str, float]:
    """Return the numeric metrics of a rubric under valid metric names.

    Names keep word characters only and are cut to 64 characters.
    """
    if not isinstance(metrics, dict):
        return {}
    named = {re.sub(r"\W", "_", str(name))[:64]: value for name, value in metrics.items()}
    numbers = {name: value for name, value in named.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if -MAX_METRIC < value < MAX_METRIC}
