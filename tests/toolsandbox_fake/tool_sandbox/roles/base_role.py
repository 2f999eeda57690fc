from __future__ import annotations

from typing import Any

from tool_sandbox.common.execution_context import RoleType, get_current_context


class PanicException(BaseException):  # as polars, which keeps the messages, has it
    pass


class BaseRole:
    role_type: RoleType | None = None

    @staticmethod
    def get_messages(ending_index: int | None = None) -> list[Any]:
        messages = get_current_context().messages
        return messages if ending_index is None else messages[: ending_index + 1]

    @staticmethod
    def add_messages(messages: list[Any]) -> None:
        for message in messages:
            try:
                f"{message.content}{message.openai_function_name}".encode()
            except UnicodeEncodeError as error:
                raise PanicException(str(error)) from error
            message.visible_to = message.visible_to or [message.sender, message.recipient]
        get_current_context().messages += messages

    @classmethod
    def filter_messages(cls, messages: list[Any]) -> list[Any]:
        return [message for message in messages if cls.role_type in message.visible_to]

    @classmethod
    def get_available_tools(cls) -> dict[str, Any]:
        tools = get_current_context().get_available_tools()
        own = cls.role_type == RoleType.USER
        return {name: tool for name, tool in tools.items() if (tool.__name__ == "end_conversation") == own}
