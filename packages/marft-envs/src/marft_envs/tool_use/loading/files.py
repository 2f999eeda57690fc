"""Files of benchmarks, read with words for what is wrong with them."""

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
    """Tasks, the database that all of them begin with, and the rules that agents are told."""

    tasks: Sequence[Task]
    tables: Mapping[str, Mapping[str, Any]]
    policy: str


def calls_of(data: Mapping[str, Any]) -> Calls:
    """The reference calls of a task's data, in their order."""
    return [call for turn in data["turns"] for call in turn] if "turns" in data else data["calls"]


def without(tasks: Iterable[Task], held_out: Iterable[Task]) -> list[Task]:
    """The tasks that ask for nothing that a held-out one asks for, too: files of one benchmark often vary the same
    questions, some of them in one turn alone."""
    known = {words for task in held_out for words in _asks(task)}
    return [task for task in tasks if known.isdisjoint(_asks(task))]


def _asks(task: Task) -> set[str]:
    """What is asked for in a task, in all of its turns; case and spacing do not count."""
    return {" ".join(words.split()).casefold() for words in task.data.get("asks", [task.prompt])}


def text_of(path: str) -> str:
    """A file's text.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"environment.data: {path} cannot be read ({error}); give the path of the file") from error


def json_of(path: str) -> Any:
    """What a JSON file holds.

    Raises:
        ValueError: it cannot be read.
    """
    return parsed(text_of(path), path)


def parsed(text: str, where: str) -> Any:
    """JSON text as values.

    Raises:
        ValueError: it is none; ``where`` says whose.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"environment.data: {where} is no JSON: {error}") from error


def lines_of(path: str) -> list[tuple[str, dict[str, Any]]]:
    """The tables of a JSONL file, each with its place: ``tasks.json, line 3``.

    Raises:
        ValueError: a line is none.
    """
    found = []
    for number, line in enumerate(text_of(path).split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            found.append((where, table(parsed(line, where), where)))
    return found


def table(value: object, where: str) -> dict[str, Any]:
    """A value that must be a table.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, dict):
        raise ValueError(f"environment.data: {where} is {cut(repr(value), 100)}, and must be a JSON object")
    return value


def field(row: Mapping[str, Any], name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """What a table holds under a name.

    Raises:
        ValueError: nothing, or something else than must be there.
    """
    value = row.get(name)
    if not isinstance(value, kind):
        names = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        shown = cut(repr(value), 100) if name in row else "missing"
        raise ValueError(f"environment.data: {where}: {name!r} is {shown}, and must be of type {names}")
    return value


def listed(row: Mapping[str, Any], name: str, where: str) -> list[Any]:
    """The list that a table holds under a name; an empty one where nothing is there.

    Raises:
        ValueError: it is none.
    """
    return [] if row.get(name) is None else list(field(row, name, list, where))


def texts(row: Mapping[str, Any], name: str, where: str) -> list[str]:
    """The same of texts, and of numbers in their words.

    Raises:
        ValueError: it is none.
    """
    found = listed(row, name, where)
    other = next((one for one in found if isinstance(one, bool) or not isinstance(one, str | int | float)), None)
    if other is not None:
        raise ValueError(f"environment.data: {where}: {name!r} holds {cut(repr(other), 100)}, and must hold texts")
    return [str(one) for one in found]


def check_records(tables: Mapping[str, Mapping[str, Any]], names: Sequence[str], world: str, where: str) -> None:
    """See that the tables of a world are there, and hold records.

    Raises:
        ValueError: one is not, or holds something else.
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
    """Tables of records by key.

    Raises:
        ValueError: there are none of these names.
    """
    found = table(value, where)
    if not set(names) <= found.keys():
        raise ValueError(f"environment.data: {where} has no {' or '.join(names)}; it must hold tables of these names")
    return {name: table(rows, f"{where}: {name}") for name, rows in found.items() if isinstance(rows, dict)}
