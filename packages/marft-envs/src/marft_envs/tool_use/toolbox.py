"""Tools over a database: those that read and those that write, what they refuse, and who used which."""

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
    """What a tool refuses, in words for the agent, who reads ``Error: …``."""


Error.__module__ = "builtins"  # so that an agent is told "Error: …", and not where the class is defined


def writes(method: Method) -> Method:
    """Marks a method as a tool that changes something."""
    setattr(method, WRITES, True)
    return tool(method)


class Toolbox:
    """Base of worlds: methods that are marked with ``@tool`` or ``@writes`` are what agents may call.

    Args:
        tables: of the episode.
        strict: whether tools hold to the rules of the house themselves; else they note that one is broken, and go on.
    """

    def __init__(self, tables: Tables, strict: bool = True) -> None:
        self.tables, self.strict = tables, strict
        self.broken: list[str] = []  # rules

    def _must(self, holds: bool, words: str) -> None:
        """Something without which the call makes no sense."""
        if not holds:
            raise Error(words)

    def _rule(self, holds: bool, words: str) -> None:
        """A rule of the house, which a strict toolbox holds to."""
        if holds:
            return
        self.broken.append(words)
        if self.strict:
            raise Error(words)

    def _state(self, holds: bool, words: str) -> None:
        """A rule of the house that the tools hold to in any case."""
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
    """What a checker asks of a world: what is otherwise than at first, as canonical text by path."""

    def changes(self) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool as it was made."""

    name: str
    arguments: Mapping[str, Any]
    error: str = ""


def writing(toolbox: type) -> frozenset[str]:
    """The names of the tools that write."""
    return frozenset(name for name in dir(toolbox) if hasattr(getattr(toolbox, name), WRITES))


def offered(toolbox: type) -> tuple[str, ...]:
    """The names of all tools."""
    return tuple(sorted(name for name in dir(toolbox) if hasattr(getattr(toolbox, name), OFFERED)))


class Ledger:
    """A toolbox as one episode uses it: every call is noted; what writes may be called once the user has agreed.

    Its attributes are the toolbox's tools.

    Args:
        toolbox: whose methods are the tools.
        agreed: whether the user has agreed.
        last: names of the tools that end the conversation: after one of them nothing can be called.
    """

    def __init__(self, toolbox: Any, agreed: Callable[[], bool], last: Sequence[str] = ()) -> None:
        self._toolbox, self._agreed, self._last = toolbox, agreed, last
        self._writing = writing(type(toolbox))
        self.calls: list[Call] = []
        self.unasked = 0  # calls that would have written without the user's agreement
        self.ended = False  # by a tool

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
    """Make reference calls ``[name, arguments]`` of tools that write; those that are refused leave nothing, as when an
    agent makes them. Arguments that are called ``*0``, ``*1``, … have a place and no name."""
    known = writing(type(toolbox))
    for name, arguments in calls:
        if name in known:
            given = json.loads(json.dumps(arguments))
            placed = [given.pop(key) for key in list(given) if key.startswith("*")]
            try:
                getattr(toolbox, name)(*placed, **given)
            except (Error, TypeError):
                continue
