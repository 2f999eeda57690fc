"""Reading and validation of benchmark files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marft.common.atomic import read_text
from marft.common.texts import truncate
from marft.common.types import Task
from marft_envs.tool_use.goals import Calls


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Tasks, their initial database, and rules shown to agents."""

    tasks: Sequence[Task]
    tables: Mapping[str, Mapping[str, Any]]
    policy: str


def reference_calls(data: Mapping[str, Any]) -> Calls:
    """Return a task's reference calls, in order."""
    return [call for turn in data["turns"] for call in turn] if "turns" in data else data["calls"]


def drop_overlapping(tasks: Iterable[Task], held_out: Iterable[Task]) -> list[Task]:
    """Drop tasks that share a request with a held-out task.

    Files in a benchmark often vary the same questions. Some tasks share only a single turn.
    """
    held_out_texts = {words for task in held_out for words in _request_texts(task)}
    return [task for task in tasks if held_out_texts.isdisjoint(_request_texts(task))]


def _request_texts(task: Task) -> set[str]:
    """Return the requests from every turn, without case and spacing."""
    return {" ".join(words.split()).casefold() for words in task.data.get("asks", [task.prompt])}


def read_benchmark_text(path: str) -> str:
    """Read a text file.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"environment.data: {path} cannot be read ({error}); give the path of the file") from error


def read_json(path: str) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: the file cannot be read, or is not JSON.
    """
    return parse_json(read_benchmark_text(path), path)


def parse_json(text: str, location: str) -> Any:
    """Parse JSON text.

    Raises:
        ValueError: the text is not JSON; the message names ``location``.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"environment.data: {location} is no JSON: {error}") from error


def read_json_lines(path: str) -> list[tuple[str, dict[str, Any]]]:
    """Read the objects in a JSONL file, each with its position: ``tasks.json, line 3``.

    Raises:
        ValueError: a line is not a JSON object.
    """
    rows = []
    for number, line in enumerate(read_benchmark_text(path).split("\n"), 1):
        if line.strip():
            location = f"{path}, line {number}"
            rows.append((location, require_table(parse_json(line, location), location)))
    return rows


def require_table(value: object, location: str) -> dict[str, Any]:
    """Return ``value`` if it is a table.

    Raises:
        ValueError: the value is not a JSON object.
    """
    if not isinstance(value, dict):
        raise ValueError(f"environment.data: {location} is {truncate(repr(value), 100)}, and must be a JSON object")
    return value


def require_field(row: Mapping[str, Any], name: str, kind: type | tuple[type, ...], location: str) -> Any:
    """Return a required field from a table.

    Raises:
        ValueError: the field is missing, or has another type.
    """
    value = row.get(name)
    if not isinstance(value, kind):
        names = " or ".join(type_item.__name__ for type_item in (kind if isinstance(kind, tuple) else (kind,)))
        value_text = truncate(repr(value), 100) if name in row else "missing"
        raise ValueError(f"environment.data: {location}: {name!r} is {value_text}, and must be of type {names}")
    return value


def optional_list(row: Mapping[str, Any], name: str, location: str) -> list[Any]:
    """Return a list field from a table; empty if missing or null.

    Raises:
        ValueError: the field is not a list.
    """
    return [] if row.get(name) is None else list(require_field(row, name, list, location))


def text_list(row: Mapping[str, Any], name: str, location: str) -> list[str]:
    """Return a list field as strings; numbers are converted.

    Raises:
        ValueError: the field is not a list, or has an item that is neither text nor a number.
    """
    values = optional_list(row, name, location)
    bad_value = next(
        (item for item in values if isinstance(item, bool) or not isinstance(item, str | int | float)), None
    )
    if bad_value is not None:
        raise ValueError(
            f"environment.data: {location}: {name!r} holds {truncate(repr(bad_value), 100)}, and must hold texts"
        )
    return [str(item) for item in values]


def check_records(tables: Mapping[str, Mapping[str, Any]], names: Sequence[str], world: str, location: str) -> None:
    """Check that a world's tables exist and contain records.

    Raises:
        ValueError: a table is missing, or has a value that is not a record.
    """
    missing = [name for name in names if name not in tables]
    if missing:
        raise ValueError(
            f"environment.data.database: {location} has no table of {' and '.join(missing)}, which the world "
            f"{world!r} needs; give the database of that domain, or name the other world"
        )
    for name in names:
        for key, record in tables[name].items():
            require_table(record, f"{location}, {name}, {key!r}")


def require_tables(value: object, names: Sequence[str], location: str) -> dict[str, dict[str, Any]]:
    """Return the tables in a JSON value, each with records by key.

    Raises:
        ValueError: the value is not an object, or a table in ``names`` is missing.
    """
    tables = require_table(value, location)
    if not set(names) <= tables.keys():
        raise ValueError(
            f"environment.data: {location} has no {' or '.join(names)}; it must hold tables of these names"
        )
    return {name: require_table(rows, f"{location}: {name}") for name, rows in tables.items() if isinstance(rows, dict)}
