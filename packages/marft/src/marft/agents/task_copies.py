"""Task copies for user code, so that no attempt can change data that grades another attempt."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from marft.common.types import Episode, Task

T = TypeVar("T")
IMMUTABLE_TYPES = (str, int, float, bool, bytes, complex, type(None))  # immutable types


def copy_task(task: Task) -> Task:
    """Return the task with a copy of its data.

    Texts and numbers are shared, so copies of large data are cheap.

    >>> task = Task("t", "", {"words": ["a"]})
    >>> copy_task(task).data["words"].append("b")
    >>> task.data
    {'words': ['a']}
    """
    return replace(task, data=copy_data(task.data))


def copy_episode_task(episode: Episode) -> Episode:
    """Return the episode with a copy of its task's data."""
    return replace(episode, task=copy_task(episode.task))


def copy_data(data: T) -> T:
    """Return a copy of a task's data, or of a part."""
    try:
        copied: T = _copy_value(data)
    except RecursionError:  # nested too deeply, or in a cycle
        copied = _deep_copy(data)
    return copied


def _copy_value(value: Any) -> Any:
    kind = type(value)
    if kind in IMMUTABLE_TYPES:
        return value
    if kind is MappingProxyType:
        return MappingProxyType({key: _copy_value(item) for key, item in value.items()})
    if kind is dict:
        return {key: _copy_value(item) for key, item in value.items()}
    if kind is list:
        return [_copy_value(item) for item in value]
    if kind is tuple:
        return tuple(_copy_value(item) for item in value)
    return _deep_copy(value)


def _deep_copy(value: T) -> T:
    """Return an object's deep copy, or the object itself if copying fails (a lock, a module)."""
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  an object of user code can raise anything
        return value
