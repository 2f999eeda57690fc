"""Tools over a database: reads, writes, refusals and a record of calls.

The database consists of plain tables. Episodes share the base and keep only their own changes.
"""

from __future__ import annotations

import ast
import hashlib
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from marft.common.errors import UserError
from marft.config.interfaces.environment import TOOL_ATTRIBUTE, tool

LARGE_INT = 1 << 63
Record = dict[str, Any]
RecordView = Mapping[str, Any]  # a record, for reading
Database = Mapping[str, RecordView]  # records by table and key


class EpisodeTables:
    """Tables for a single episode. A record is copied before its first write.

    >>> tables = EpisodeTables({"orders": {"W1": {"status": "pending"}}})
    >>> tables.edit("orders", "W1")["status"] = "cancelled"
    >>> tables.changes()
    {'orders/W1/status': '"cancelled"'}
    """

    def __init__(self, base: Database) -> None:
        self.base = base
        self._changed_records: dict[tuple[str, str], Record] = {}

    def find(self, table: str, key: str) -> RecordView | None:
        """Return a record for reading; None if missing."""
        return self._changed_records.get((table, key)) or self.base.get(table, {}).get(key)

    def edit(self, table: str, key: str) -> Record:
        """Return an existing record for writing.

        Raises:
            KeyError: the record does not exist.
        """
        if (table, key) not in self._changed_records:
            self._changed_records[table, key] = deepcopy(self.base[table][key])
        return self._changed_records[table, key]

    def put(self, table: str, key: str, record: Record) -> None:
        """Add a new record."""
        assert self.find(table, key) is None, f"{table}/{key} is there already"
        self._changed_records[table, key] = record

    def rows(self, table: str) -> Iterator[RecordView]:
        """Yield the records in a table, new records last."""
        for key, record in self.base.get(table, {}).items():
            written = self._changed_records.get((table, key))
            yield record if written is None else written
        for (table_name, key), record in self._changed_records.items():
            if table_name == table and key not in self.base.get(table, {}):
                yield record

    def changes(self) -> dict[str, str]:
        """Return the changes since the start: JSON values by path, or ``gone`` for removed values."""
        changes_found: dict[str, str] = {}
        for (table, key), record in self._changed_records.items():
            before = _leaf_values(self.base.get(table, {}).get(key), f"{table}/{key}")
            after = _leaf_values(record, f"{table}/{key}")
            changes_found |= {path: value for path, value in after.items() if before.get(path) != value}
            changes_found |= {path: "gone" for path in before if path not in after}
        return dict(sorted(changes_found.items()))

    def digest(self) -> str:
        """Return a digest over the changes.

        The digest does not depend on the order of writes, nor on changes that were undone.
        """
        return hashlib.sha256(json.dumps(self.changes()).encode()).hexdigest()


def _leaf_values(value: object, path: str) -> dict[str, str]:
    """Return the leaf values in nested tables by path. A list or an empty table is a single value."""
    if value is None:
        return {}
    if isinstance(value, Mapping) and value:
        return {leaf: text for key in value for leaf, text in _leaf_values_or_null(value[key], f"{path}/{key}").items()}
    return {path: json.dumps(_to_canonical(value), sort_keys=True)}


def _leaf_values_or_null(value: object, path: str) -> dict[str, str]:
    return _leaf_values(value, path) or {path: "null"}


def _to_canonical(value: Any) -> Any:
    """Convert numbers to a canonical form: rounded to cents, with 3.0 as 3.

    Integers beyond 2⁶³ are written in hexadecimal, because Python limits the digits of decimal conversions.
    """
    if isinstance(value, Mapping):
        return {key: _to_canonical(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_canonical(inner) for inner in value]
    if isinstance(value, float):
        cents = round(value, 2)
        return int(cents) if cents.is_integer() else cents
    if isinstance(value, int) and abs(value) > LARGE_INT:
        return hex(value)
    return value


WRITE_MARK = "__marft_writes__"
Method = TypeVar("Method", bound=Callable[..., object])


class Error(UserError):
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

    def _get_record(self, table: str, key: str, subject: str) -> RecordView:
        record = self.tables.find(table, key)
        if record is None:
            raise Error(f"{subject} not found")
        return record

    def _edit(self, table: str, key: str) -> Record:
        return self.tables.edit(table, key)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """Record of a tool call."""

    name: str
    arguments: RecordView
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


OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
MAX_LENGTH = 500  # maximum length of an expression, in characters


def evaluate(expression: str, digits: int = 2) -> str:
    """Evaluate an expression with numbers, ``+ - * /`` and brackets; round to ``digits`` decimals.

    >>> evaluate("2 * (3.5 - 1)")
    '5.0'

    Raises:
        Error: the text is not a valid expression, has more than 500 characters, or divides by 0.
    """
    try:
        if len(expression) > MAX_LENGTH:
            raise SyntaxError
        return str(round(_evaluate_node(ast.parse(expression.strip(), mode="eval").body), digits))
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError) as error:
        raise Error("invalid expression") from error


def _evaluate_node(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return -_evaluate_node(node.operand) if isinstance(node.op, ast.USub) else _evaluate_node(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_evaluate_node(node.left), _evaluate_node(node.right))
    raise SyntaxError


class ServiceToolbox(Toolbox):
    """Base class for customer service worlds."""

    @tool
    def calculate(self, expression: str) -> str:
        """Work out an expression of numbers, + - * / and brackets."""
        return evaluate(expression)

    @tool
    def think(self, thought: str) -> str:  # noqa: ARG002  it is written down, and changes nothing
        """Write a thought down; it changes nothing."""
        return ""

    @tool
    def transfer_to_human_agents(self, summary: str) -> str:  # noqa: ARG002
        """Hand over to a human, where no tool can do what is asked for."""
        return "Transfer successful"
