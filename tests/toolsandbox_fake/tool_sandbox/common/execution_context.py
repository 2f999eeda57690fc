from __future__ import annotations

import code
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from tool_sandbox.common.tool_discovery import all_tools


class RoleType(StrEnum):
    SYSTEM = "SYSTEM"
    USER = "USER"
    AGENT = "AGENT"
    EXECUTION_ENVIRONMENT = "EXECUTION_ENVIRONMENT"


class ScenarioCategories(StrEnum):
    SINGLE_USER_TURN = "SINGLE_USER_TURN"
    MULTIPLE_USER_TURN = "MULTIPLE_USER_TURN"
    TOOL_NAME_SCRAMBLED = "TOOL_NAME_SCRAMBLED"


class Console(code.InteractiveConsole):
    def __deepcopy__(self, known: dict[int, Any]) -> Console:
        return Console()


class ExecutionContext:
    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.lamp, self.book, self.active = False, {"Ada": "1"}, True
        self.tool_allow_list: list[str] | None = ["end_conversation"]
        self.scrambled = False
        self.interactive_console = Console()
        self.name_to_tool: dict[str, Callable[..., Any]] = all_tools()

    @property
    def max_sandbox_message_index(self) -> int:
        return len(self.messages) - 1

    def facing(self, name: str) -> str:
        return f"tool_{sorted(self.name_to_tool).index(name)}" if self.scrambled else name

    def get_execution_facing_tool_name(self, name: str) -> str:
        return next(known for known in self.name_to_tool if self.facing(known) == name)

    def get_available_tools(self) -> dict[str, Callable[..., Any]]:
        return {self.facing(name): self.name_to_tool[name] for name in self.tool_allow_list or ()}


CURRENT: list[ExecutionContext] = []


def get_current_context() -> ExecutionContext:
    return CURRENT[-1]


def set_current_context(context: ExecutionContext) -> None:
    CURRENT[:] = [context]
