"""What models answer with, as the package has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class ToolCall:
    id: str
    name: str
    arguments: str


@dataclass
class ResponseMessage:
    content: str
    tool_calls: list[ToolCall] | None
    finish_reason: str
    is_truncated: bool


@dataclass
class Response:
    id: str
    created: int
    model: str
    message: ResponseMessage
    usage: Any = None
