"""Cohorts: groups of tasks with equal values in a data field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from marft.common.texts import storable
from marft.common.types import Task
from marft.config.settings import closest
from marft.envs.contents import CONTENT

LONGEST = 100  # maximum length of a value that names a cohort, in characters


def fields_of(tasks: Sequence[Task]) -> dict[str, dict[str, str]]:
    """Return the fields that can define cohorts, each with the value of every task.

    Values are text, integers and booleans. A field is omitted if most tasks have a unique value. Digests of bundled
    task files are omitted too.

    >>> fields_of([Task(str(n), "?", {"level": n // 2, "answer": str(n)}) for n in range(4)])
    {'level': {'0': '0', '1': '0', '2': '1', '3': '1'}}
    """
    found: dict[str, dict[str, str]] = {}
    for task in tasks:
        for field, value in task.data.items() if isinstance(task.data, Mapping) else ():
            if not isinstance(field, str) or field == CONTENT:
                continue
            if isinstance(value, str | int) and len(text := str(value)) <= LONGEST:
                found.setdefault(storable(field), {})[task.id] = storable(text)
    return {field: of for field, of in found.items() if len(set(of.values())) <= len(of) / 2}


def together(several: Iterable[Mapping[str, Mapping[str, str]]]) -> dict[str, dict[str, str]]:
    """Merge the fields of several evaluations.

    >>> together([{"level": {"a": "easy"}}, {"level": {"b": "hard"}}])
    {'level': {'a': 'easy', 'b': 'hard'}}
    """
    fields: dict[str, dict[str, str]] = {}
    for of_one in several:
        for field, values in of_one.items():
            fields.setdefault(field, {}).update(values)
    return fields


def cohorts_of(fields: Mapping[str, Mapping[str, str]], field: str) -> dict[str, set[str]]:
    """Return the task IDs of each cohort, by value of the field.

    Raises:
        ValueError: the tasks have no such field.
    """
    if field not in fields:
        known, meant = ", ".join(sorted(fields)) or "none", closest(field, fields)
        raise ValueError(
            f"tasks have no field {field!r} that several of them share; fields that they share: {known}"
            + (f"; did you mean {meant!r}?" if meant else "")
        )
    cohorts: dict[str, set[str]] = {}
    for task, value in fields[field].items():
        cohorts.setdefault(value, set()).add(task)
    return dict(sorted(cohorts.items()))


def named_cohorts(fields: Mapping[str, Mapping[str, str]], field: str) -> dict[str, set[str]]:
    """Return the task IDs of each cohort, by its display name.

    >>> named_cohorts({"level": {"a": "easy", "b": "hard"}}, "level")
    {'level = easy': {'a'}, 'level = hard': {'b'}}

    Raises:
        ValueError: the tasks have no such field.
    """
    return {f"{field} = {value}": tasks for value, tasks in cohorts_of(fields, field).items()}
