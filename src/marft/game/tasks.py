"""Copies of tasks for code that is not ours: no attempt can write into the data that another is graded by."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from marft.types import Task

SHARED = (str, int, float, bool, bytes, complex, type(None))  # that nobody can change


def own_copy(task: Task) -> Task:
    """Return the task with a copy of its data. Texts and numbers are shared, so that large data costs little.

    >>> task = Task("t", "", {"words": ["a"]})
    >>> own_copy(task).data["words"].append("b")
    >>> task.data
    {'words': ['a']}
    """
    try:
        return replace(task, data=_copied(task.data))
    except RecursionError:  # it lies too deep, or in itself
        return replace(task, data=_deep(task.data))


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in SHARED:
        return value
    if kind is dict:
        return {key: _copied(item) for key, item in value.items()}
    if kind is list:
        return [_copied(item) for item in value]
    if kind is tuple:
        return tuple(_copied(item) for item in value)
    return _deep(value)


def _deep(value: Any) -> Any:
    """Return a copy of an object of any type; the object itself where it has none, such as a lock or a module."""
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  somebody else's object
        return value
