"""Tool that runs Python in the sandbox."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from marft.agents.sandbox.runner import RunResult, SandboxSettings, require_isolation, run_python
from marft.common.errors import UserError
from marft.common.types import Tool
from marft.config.interfaces.tools import StatelessSource, ToolProvider

DESCRIPTION = (
    "Run a Python program and get what it prints. It runs alone in an empty folder, without network, "
    "and only with the standard library; nothing is kept from one run to the next."
)


class Python(ToolProvider):
    """Tool ``python(code)``; the fields limit the sandbox."""

    limits: SandboxSettings = Field(default=SandboxSettings(), description="sandbox limits for each call")

    def connect(self) -> PythonSource:
        """Return the tool source for the run.

        Raises:
            UserError: the limits require isolation, and the machine offers none.
        """
        require_isolation(self.limits)
        return PythonSource(self.limits)


class SandboxSource(StatelessSource):
    """Tool source with one jail per call."""

    limits: SandboxSettings

    @property
    def max_concurrency(self) -> int:
        """One jail per CPU core."""
        return os.cpu_count() or 1

    @property
    def max_seconds(self) -> float:
        """Timeout of a sandbox run in seconds."""
        return self.limits.timeout_seconds


@dataclass(frozen=True)
class PythonSource(SandboxSource):
    """Tool source for ``python``, shared by all episodes."""

    limits: SandboxSettings

    @property
    def tools(self) -> Sequence[Tool]:
        """A single tool with a program argument."""
        code = {"type": "string", "description": "The whole program."}
        return [Tool("python", DESCRIPTION, {"type": "object", "properties": {"code": code}, "required": ["code"]})]

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:  # noqa: ARG002
        """Run the program in a jail and return its output."""
        code = arguments.get("code")
        if not isinstance(code, str):
            raise UserError('code must be a string, such as {"code": "print(2 + 3)"}')
        return format_result(run_python(code, self.limits))


def format_result(result: RunResult) -> str:
    """Return a run's report for an agent: output, errors, and the reason if the run did not finish normally."""
    status_note = {
        "finished": "",
        "failed": f"[exit status {result.status}]",
        "timed_out": f"[stopped: it ran over {result.seconds:.0f} s]",
        "killed": "[killed: over a limit of time, memory or files]",
        "too_much_output": "[stopped: too much output]",
    }[result.outcome]
    return "\n".join(part for part in (result.output.rstrip(), result.errors.rstrip(), status_note) if part)
