from __future__ import annotations

import copy
import io
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from tool_sandbox.common.execution_context import RoleType, get_current_context, set_current_context
from tool_sandbox.common.message_conversion import Message
from tool_sandbox.roles.base_role import BaseRole


class ExecutionEnvironment(BaseRole):
    role_type = RoleType.EXECUTION_ENVIRONMENT

    def respond(self, ending_index: int | None = None) -> None:
        messages = self.get_messages(ending_index)
        assert messages[-1].recipient == self.role_type
        new = []
        for message in reversed(messages):
            if message.recipient != self.role_type:
                break
            new.insert(0, message)
        context = get_current_context()
        if len(new) > 1:  # as the package does, which tries orders on copies, the current context becomes another one
            console = context.interactive_console
            context = copy.deepcopy(context)
            context.interactive_console = console
            set_current_context(context)
        answers = [answer for message in new if (answer := self._run(context, message))]
        self.add_messages(answers)

    def _run(self, context: Any, message: Any) -> Message | None:
        out, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(errors):
            context.interactive_console.runcode(compile(message.content, "call", "exec"))
        if message.sender == RoleType.SYSTEM:
            return None
        said = errors.getvalue().rstrip().split("\n")[-1] or out.getvalue().rstrip()
        return Message(sender=self.role_type, recipient=message.sender, content=said)
