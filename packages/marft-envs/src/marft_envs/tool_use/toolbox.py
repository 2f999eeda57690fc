"""Tools over a database: reads, writes, refusals and a record of calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from marft.agents.environment import TOOL_ATTRIBUTE, tool
from marft_envs.tool_use.tables import EpisodeTables, Record

WRITE_MARK = "__marft_writes__"
Method = TypeVar("Method", bound=Callable[..., object])


class Error(ValueError):
    """Refusal from a tool, with a message for the agent (``Error: …``)."""


Error.__module__ = "builtins"  # the agent then sees "Error: …" without a module path


def write_tool(method: Method) -> Method:
    """Mark a method as a tool that writes."""
    setattr(method, WRITE_MARK, True)
    return tool(method)


class Toolbox:
    """Base class for worlds; agents may call methods marked with ``@tool`` or ``@write_tool``.

    Args:
        tables: tables of the episode.
        strict: True to let tools enforce the policy rules. False to record violations and continue.
    """

    def __init__(self, tables: EpisodeTables, strict: bool = True) -> None:
        self.tables, self.strict = tables, strict
        self.violations: list[str] = []  # violated rules

    def _require(self, condition: bool, message: str) -> None:
        """Raise an error if a call makes no sense."""
        if not condition:
            raise Error(message)

    def _check_policy(self, condition: bool, message: str) -> None:
        """Record a violated policy rule; raise an error if strict."""
        if condition:
            return
        self.violations.append(message)
        if self.strict:
            raise Error(message)

    def _require_state(self, condition: bool, message: str) -> None:
        """Record a violated policy rule and raise an error, strict or not."""
        if not condition:
            self.violations.append(message)
            raise Error(message)

    def _get_record(self, table: str, key: str, subject: str) -> Mapping[str, Any]:
        record = self.tables.find(table, key)
        if record is None:
            raise Error(f"{subject} not found")
        return record

    def _edit(self, table: str, key: str) -> Record:
        return self.tables.edit(table, key)


class StateChanges(Protocol):
    """World state for a checker: changes since the start, as canonical text by path."""

    def changes(self) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """Record of a tool call."""

    name: str
    arguments: Mapping[str, Any]
    error: str = ""


def write_tool_names(toolbox: type) -> frozenset[str]:
    """Return the names of tools that write."""
    return frozenset(name for name in dir(toolbox) if hasattr(getattr(toolbox, name), WRITE_MARK))


def tool_names(toolbox: type) -> tuple[str, ...]:
    """Return the names of every tool."""
    return tuple(sorted(name for name in dir(toolbox) if hasattr(getattr(toolbox, name), TOOL_ATTRIBUTE)))


class ToolCallRecorder:
    """Toolbox for a single episode; records every call, and allows writes only after the user's agreement.

    The attributes of this object are the toolbox's tools.

    Args:
        toolbox: object whose methods are the tools.
        is_confirmed: function that returns True if the user has agreed.
        ending_tools: names of tools that end the conversation; later calls raise an error.
    """

    def __init__(self, toolbox: Any, is_confirmed: Callable[[], bool], ending_tools: Sequence[str] = ()) -> None:
        self._toolbox, self._is_confirmed, self._ending_tools = toolbox, is_confirmed, ending_tools
        self._write_tools = write_tool_names(type(toolbox))
        self.calls: list[RecordedCall] = []
        self.unconfirmed_writes = 0  # write calls without the user's agreement
        self.ended = False  # True after a tool ended the conversation

    def __getattr__(self, name: str) -> Callable[..., object]:
        return partial(self._record_call, name, getattr(self._toolbox, name))

    def _record_call(self, name: str, method: Callable[..., object], /, **arguments: Any) -> object:
        try:
            if self.ended:
                raise Error("the conversation is over")
            self.ended = name in self._ending_tools
            if name in self._write_tools and not self._is_confirmed():
                self.unconfirmed_writes += 1
                raise Error("the user has not agreed; say what you will do and ask first")
            result = method(**arguments)
        except Error as error:
            self.calls.append(RecordedCall(name, deepcopy(arguments), str(error)))
            raise
        self.calls.append(RecordedCall(name, deepcopy(arguments)))
        return result


def apply_calls(toolbox: object, calls: Sequence[Sequence[Any]]) -> None:
    """Apply reference calls ``[name, arguments]`` to a toolbox; calls of read-only tools are skipped.

    A refused call leaves no effect, as in an agent's episode. Arguments named ``*0``, ``*1``, … are positional.
    """
    write_tools = write_tool_names(type(toolbox))
    for name, arguments in calls:
        if name in write_tools:
            keywords = json.loads(json.dumps(arguments))
            positional = [keywords.pop(key) for key in list(keywords) if key.startswith("*")]
            try:
                getattr(toolbox, name)(*positional, **keywords)
            except (Error, TypeError):
                continue
