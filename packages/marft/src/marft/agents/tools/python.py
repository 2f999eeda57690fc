"""Tool that runs Python in the sandbox."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marft.agents.sandbox.runner import Ran, require_isolation, run_python
from marft.agents.sandbox.settings import SandboxSettings
from marft.agents.tool_sources import StatelessSource
from marft.common.types import Tool
from marft.config.plugins import Plugin

ABOUT = (
    "Run a Python program and get what it prints. It runs alone in an empty folder, without network, "
    "and only with the standard library; nothing is kept from one run to the next."
)


class Python(Plugin):
    """Tool ``python(code)``; the fields limit the sandbox."""

    limits: SandboxSettings = SandboxSettings()  # sandbox limits for each call

    def connect(self) -> PythonSource:
        """Return the tool source for the run.

        Raises:
            ValueError: the limits require isolation, and the machine offers none.
        """
        require_isolation(self.limits)
        return PythonSource(self.limits)


class Sandboxed(StatelessSource):
    """Tool source with one jail per call."""

    limits: SandboxSettings

    @property
    def at_once(self) -> int:
        """One jail per CPU core."""
        return os.cpu_count() or 1

    @property
    def longest(self) -> float:
        """Timeout of a sandbox run in seconds."""
        return self.limits.seconds


@dataclass(frozen=True)
class PythonSource(Sandboxed):
    """Tool source for ``python``, shared by all episodes."""

    limits: SandboxSettings

    @property
    def tools(self) -> Sequence[Tool]:
        """A single tool with a program argument."""
        code = {"type": "string", "description": "The whole program."}
        return [Tool("python", ABOUT, {"type": "object", "properties": {"code": code}, "required": ["code"]})]

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:  # noqa: ARG002
        """Run the program in a jail and return its output."""
        code = arguments.get("code")
        if not isinstance(code, str):
            raise ValueError('code must be a string, such as {"code": "print(2 + 3)"}')
        return report(run_python(code, self.limits))


def report(ran: Ran) -> str:
    """Return a run's report for an agent: output, errors, and the reason if the run did not finish normally."""
    how = {
        "finished": "",
        "failed": f"[exit status {ran.status}]",
        "timed_out": f"[stopped: it ran over {ran.seconds:.0f} s]",
        "killed": "[killed: over a limit of time, memory or files]",
        "too_much_output": "[stopped: too much output]",
    }[ran.outcome]
    return "\n".join(part for part in (ran.output.rstrip(), ran.errors.rstrip(), how) if part)
