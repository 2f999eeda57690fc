from __future__ import annotations

import importlib
from collections.abc import Callable
from enum import StrEnum
from typing import Any


class ToolBackend(StrEnum):
    DEFAULT = "DEFAULT"


def all_tools() -> dict[str, Callable[..., Any]]:
    phone = importlib.import_module("tool_sandbox.tools.phone")
    web = importlib.import_module("tool_sandbox.tools.rapid_api_search_tools")
    tools = (phone.set_lamp, phone.add_person, phone.what_time, phone.misbehave, phone.end_conversation, web.search_web)
    return {tool.__name__: tool for tool in tools}
