"""Tools over a database: reads, writes, refusals and a record of calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from marft.agents.environment import OFFERED, tool
from marft_envs.tool_use.tables import Record, Tables

WRITES = "__marft_writes__"
Method = TypeVar("Method", bound=Callable[..., object])


class Error(ValueError):
    """Refusal from a tool, with a message for the agent (``Error: …``)."""


Error.__module__ = "builtins"  # the agent then sees "Error: …" without a module path


def writes(method: Method) -> Method:
    """Mark a method as a tool that writes."""
    setattr(method, WRITES, True)
    return tool(method)


class Toolbox:
    """Base class for worlds; agents may call methods marked with ``@tool`` or ``@writes``.

    Args:
        tables: tables of the episode.
        strict: True to let tools enforce the policy rules. False to record violations and continue.
    """

    def __init__(self, tables: Tables, strict: bool = True) -> None:
        self.tables, self.strict = tables, strict
        self.broken: list[str] = []  # violated rules

    def _must(self, holds: bool, words: str) -> None:
        """Raise an error if a call makes no sense."""
        if not holds:
            raise Error(words)

    def _rule(self, holds: bool, words: str) -> None:
        """Record a violated policy rule; raise an error if strict."""
        if holds:
            return
        self.broken.append(words)
        if self.strict:
            raise Error(words)

    def _state(self, holds: bool, words: str) -> None:
        """Record a violated policy rule and raise an error, strict or not."""
        if not holds:
            self.broken.append(words)
            raise Error(words)

    def _found(self, table: str, key: str, what: str) -> Mapping[str, Any]:
        record = self.tables.find(table, key)
        if record is None:
            raise Error(f"{what} not found")
        return record

    def _edit(self, table: str, key: str) -> Record:
        return self.tables.edit(table, key)


class States(Protocol):
    """World state for a checker: changes since the start, as canonical text by path."""

    def changes(self) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class Call:
    """Record of a tool call."""

    name: str
    arguments: Mapping[str, Any]
    error: str = ""


def writing(toolbox: type) -> frozenset[str]:
    """Return the names of tools that write."""
    return frozenset(name for name in dir(toolbox) if hasattr(getattr(toolbox, name), WRITES))


def offered(toolbox: type) -> tuple[str, ...]:
    """Return the names of every tool."""
    return tuple(sorted(name for name in dir(toolbox) if hasattr(getattr(toolbox, name), OFFERED)))


class Ledger:
    """Toolbox for a single episode; records every call, and allows writes only after the user's agreement.

    The attributes of this object are the toolbox's tools.

    Args:
        toolbox: object whose methods are the tools.
        agreed: function that returns True if the user has agreed.
        last: names of tools that end the conversation; later calls raise an error.
    """

    def __init__(self, toolbox: Any, agreed: Callable[[], bool], last: Sequence[str] = ()) -> None:
        self._toolbox, self._agreed, self._last = toolbox, agreed, last
        self._writing = writing(type(toolbox))
        self.calls: list[Call] = []
        self.unasked = 0  # write calls without the user's agreement
        self.ended = False  # True after a tool ended the conversation

    def __getattr__(self, name: str) -> Callable[..., object]:
        return partial(self._call, name, getattr(self._toolbox, name))

    def _call(self, name: str, method: Callable[..., object], /, **arguments: Any) -> object:
        try:
            if self.ended:
                raise Error("the conversation is over")
            self.ended = name in self._last
            if name in self._writing and not self._agreed():
                self.unasked += 1
                raise Error("the user has not agreed; say what you will do and ask first")
            result = method(**arguments)
        except Error as error:
            self.calls.append(Call(name, deepcopy(arguments), str(error)))
            raise
        self.calls.append(Call(name, deepcopy(arguments)))
        return result


def run(toolbox: object, calls: Sequence[Sequence[Any]]) -> None:
    """Apply reference calls ``[name, arguments]`` to a toolbox; calls of read-only tools are skipped.

    A refused call leaves no effect, as in an agent's episode. Arguments named ``*0``, ``*1``, … are positional.
    """
    known = writing(type(toolbox))
    for name, arguments in calls:
        if name in known:
            given = json.loads(json.dumps(arguments))
            placed = [given.pop(key) for key in list(given) if key.startswith("*")]
            try:
                getattr(toolbox, name)(*placed, **given)
            except (Error, TypeError):
                continue
