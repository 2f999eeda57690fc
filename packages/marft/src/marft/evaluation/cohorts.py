"""Cohorts: groups of tasks with equal values in a data field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from marft.common.errors import UserError
from marft.common.texts import replace_surrogates
from marft.common.types import Task
from marft.config.settings import closest_match
from marft.envs.tasks import DIGEST_KEY

MAX_VALUE_LENGTH = 100  # maximum length of a value that names a cohort, in characters


def collect_fields(tasks: Sequence[Task]) -> dict[str, dict[str, str]]:
    """Return the fields that can define cohorts, each with the value of every task.

    Values are text, integers and booleans. A field is omitted if most tasks have a unique value. Digests of bundled
    task files are omitted too.

    >>> collect_fields([Task(str(n), "?", {"level": n // 2, "answer": str(n)}) for n in range(4)])
    {'level': {'0': '0', '1': '0', '2': '1', '3': '1'}}
    """
    values_by_field: dict[str, dict[str, str]] = {}
    for task in tasks:
        for field, value in task.data.items() if isinstance(task.data, Mapping) else ():
            if not isinstance(field, str) or field == DIGEST_KEY:
                continue
            if isinstance(value, str | int) and len(text := str(value)) <= MAX_VALUE_LENGTH:
                values_by_field.setdefault(replace_surrogates(field), {})[task.id] = replace_surrogates(text)
    return {field: values for field, values in values_by_field.items() if len(set(values.values())) <= len(values) / 2}


def merge_fields(field_maps: Iterable[Mapping[str, Mapping[str, str]]]) -> dict[str, dict[str, str]]:
    """Merge the fields of several evaluations.

    >>> merge_fields([{"level": {"a": "easy"}}, {"level": {"b": "hard"}}])
    {'level': {'a': 'easy', 'b': 'hard'}}
    """
    fields: dict[str, dict[str, str]] = {}
    for field_map in field_maps:
        for field, values in field_map.items():
            fields.setdefault(field, {}).update(values)
    return fields


def group_tasks_by_field(fields: Mapping[str, Mapping[str, str]], field: str) -> dict[str, set[str]]:
    """Return the task IDs of each cohort, by value of the field.

    Raises:
        UserError: the tasks have no such field.
    """
    if field not in fields:
        available, suggestion = ", ".join(sorted(fields)) or "none", closest_match(field, fields)
        raise UserError(
            f"tasks have no field {field!r} that several of them share; fields that they share: {available}"
            + (f"; did you mean {suggestion!r}?" if suggestion else "")
        )
    cohorts: dict[str, set[str]] = {}
    for task, value in fields[field].items():
        cohorts.setdefault(value, set()).add(task)
    return dict(sorted(cohorts.items()))


def group_tasks_by_label(fields: Mapping[str, Mapping[str, str]], field: str) -> dict[str, set[str]]:
    """Return the task IDs of each cohort, by its display name.

    >>> group_tasks_by_label({"level": {"a": "easy", "b": "hard"}}, "level")
    {'level = easy': {'a'}, 'level = hard': {'b'}}

    Raises:
        UserError: the tasks have no such field.
    """
    return {f"{field} = {value}": tasks for value, tasks in group_tasks_by_field(fields, field).items()}
