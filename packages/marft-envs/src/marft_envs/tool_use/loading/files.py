"""Reading and validation of benchmark files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft.common.atomic import read_text
from marft.common.texts import cut
from marft.common.types import Task
from marft_envs.tool_use.goals import Calls


@dataclass(frozen=True, slots=True)
class Loaded:
    """Tasks, their initial database, and rules shown to agents."""

    tasks: Sequence[Task]
    tables: Mapping[str, Mapping[str, Any]]
    policy: str


def calls_of(data: Mapping[str, Any]) -> Calls:
    """Return a task's reference calls, in order."""
    return [call for turn in data["turns"] for call in turn] if "turns" in data else data["calls"]


def without(tasks: Iterable[Task], held_out: Iterable[Task]) -> list[Task]:
    """Drop tasks that share a request with a held-out task.

    Files in a benchmark often vary the same questions. Some tasks share only a single turn.
    """
    known = {words for task in held_out for words in _asks(task)}
    return [task for task in tasks if known.isdisjoint(_asks(task))]


def _asks(task: Task) -> set[str]:
    """Return the requests from every turn, without case and spacing."""
    return {" ".join(words.split()).casefold() for words in task.data.get("asks", [task.prompt])}


def text_of(path: str) -> str:
    """Read a text file.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"environment.data: {path} cannot be read ({error}); give the path of the file") from error


def json_of(path: str) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: the file cannot be read, or is not JSON.
    """
    return parsed(text_of(path), path)


def parsed(text: str, where: str) -> Any:
    """Parse JSON text.

    Raises:
        ValueError: the text is not JSON; the message names ``where``.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"environment.data: {where} is no JSON: {error}") from error


def lines_of(path: str) -> list[tuple[str, dict[str, Any]]]:
    """Read the objects in a JSONL file, each with its position: ``tasks.json, line 3``.

    Raises:
        ValueError: a line is not a JSON object.
    """
    found = []
    for number, line in enumerate(text_of(path).split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            found.append((where, table(parsed(line, where), where)))
    return found


def table(value: object, where: str) -> dict[str, Any]:
    """Return ``value`` if it is a table.

    Raises:
        ValueError: the value is not a JSON object.
    """
    if not isinstance(value, dict):
        raise ValueError(f"environment.data: {where} is {cut(repr(value), 100)}, and must be a JSON object")
    return value


def field(row: Mapping[str, Any], name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Return a required field from a table.

    Raises:
        ValueError: the field is missing, or has another type.
    """
    value = row.get(name)
    if not isinstance(value, kind):
        names = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        shown = cut(repr(value), 100) if name in row else "missing"
        raise ValueError(f"environment.data: {where}: {name!r} is {shown}, and must be of type {names}")
    return value


def listed(row: Mapping[str, Any], name: str, where: str) -> list[Any]:
    """Return a list field from a table; empty if missing or null.

    Raises:
        ValueError: the field is not a list.
    """
    return [] if row.get(name) is None else list(field(row, name, list, where))


def texts(row: Mapping[str, Any], name: str, where: str) -> list[str]:
    """Return a list field as strings; numbers are converted.

    Raises:
        ValueError: the field is not a list, or has an item that is neither text nor a number.
    """
    found = listed(row, name, where)
    other = next((one for one in found if isinstance(one, bool) or not isinstance(one, str | int | float)), None)
    if other is not None:
        raise ValueError(f"environment.data: {where}: {name!r} holds {cut(repr(other), 100)}, and must hold texts")
    return [str(one) for one in found]


def check_records(tables: Mapping[str, Mapping[str, Any]], names: Sequence[str], world: str, where: str) -> None:
    """Check that a world's tables exist and contain records.

    Raises:
        ValueError: a table is missing, or has a value that is not a record.
    """
    missing = [name for name in names if name not in tables]
    if missing:
        raise ValueError(
            f"environment.data.database: {where} has no table of {' and '.join(missing)}, which the world "
            f"{world!r} needs; give the database of that domain, or name the other world"
        )
    for name in names:
        for key, record in tables[name].items():
            table(record, f"{where}, {name}, {key!r}")


def tables_in(value: object, names: Sequence[str], where: str) -> dict[str, dict[str, Any]]:
    """Return the tables in a JSON value, each with records by key.

    Raises:
        ValueError: the value is not an object, or a table in ``names`` is missing.
    """
    found = table(value, where)
    if not set(names) <= found.keys():
        raise ValueError(f"environment.data: {where} has no {' or '.join(names)}; it must hold tables of these names")
    return {name: table(rows, f"{where}: {name}") for name, rows in found.items() if isinstance(rows, dict)}
