from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def convert_to_openai_tools(tools: dict[str, Callable[..., Any]]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": tool.__doc__ or "",
                "parameters": {"type": "object", "properties": {key: {} for key in inspect.signature(tool).parameters}},
            },
        }
        for name, tool in tools.items()
    ]
