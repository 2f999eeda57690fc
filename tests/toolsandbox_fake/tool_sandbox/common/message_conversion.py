from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Message:
    sender: Any
    recipient: Any
    content: str
    openai_tool_call_id: str | None = None
    openai_function_name: str | None = None
    visible_to: Any = None
