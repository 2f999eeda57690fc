"""A tool that runs Python in the sandbox."""

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
    """``python(code)``; the fields are the sandbox's limits."""

    limits: SandboxSettings = SandboxSettings()  # of the sandbox, for each call

    def connect(self) -> PythonSource:
        """What the run uses.

        Raises:
            ValueError: the machine offers no isolation.
        """
        require_isolation(self.limits)
        return PythonSource(self.limits)


class Sandboxed(StatelessSource):
    """Tools of which every call has a jail of its own."""

    limits: SandboxSettings

    @property
    def at_once(self) -> int:
        """A jail for each core."""
        return os.cpu_count() or 1

    @property
    def longest(self) -> float:
        """Seconds that the sandbox lets a call run."""
        return self.limits.seconds


@dataclass(frozen=True)
class PythonSource(Sandboxed):
    """The same for every episode."""

    limits: SandboxSettings

    @property
    def tools(self) -> Sequence[Tool]:
        """One tool, which takes a program."""
        code = {"type": "string", "description": "The whole program."}
        return [Tool("python", ABOUT, {"type": "object", "properties": {"code": code}, "required": ["code"]})]

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:  # noqa: ARG002
        """Run the program in a jail → what it printed."""
        code = arguments.get("code")
        if not isinstance(code, str):
            raise ValueError('code must be a string, such as {"code": "print(2 + 3)"}')
        return report(run_python(code, self.limits))


def report(ran: Ran) -> str:
    """What an agent is shown of a run of code: output, errors, and how it ended where that was not well."""
    how = {
        "finished": "",
        "failed": f"[exit status {ran.status}]",
        "timed_out": f"[stopped: it ran over {ran.seconds:.0f} s]",
        "killed": "[killed: over a limit of time, memory or files]",
        "too_much_output": "[stopped: too much output]",
    }[ran.outcome]
    return "\n".join(part for part in (ran.output.rstrip(), ran.errors.rstrip(), how) if part)
