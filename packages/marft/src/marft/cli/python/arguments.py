"""Argument checks for the Python API: a wrong type raises a clear error before any work begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marft.common.callbacks import Callback
from marft.common.errors import UserError

CHANGES_HINT = 'changes are a table, {"training.steps": 5}, or a list of words, ["--training.steps", "5"]'


def is_path(value: object) -> bool:
    """Return True for a non-empty path."""
    return isinstance(value, str | Path) and bool(str(value))


def check_path(value: object, label: str) -> None:
    """Check for a path.

    Args:
        label: noun for the message: ``a run``.

    Raises:
        UserError: the value is not a path.
    """
    if not is_path(value):
        raise UserError(f"{label} is named by its folder, a text or a Path, and this is {_describe_value(value)}")


def check_arguments(changes: object) -> None:
    """Check for a list of command-line arguments.

    Raises:
        UserError: the value is not a list of strings.
    """
    if isinstance(changes, str | bytes) or not isinstance(changes, Iterable):
        raise UserError(f"{CHANGES_HINT}; this is {_describe_value(changes)}")
    wrong = [word for word in changes if not isinstance(word, str)] if isinstance(changes, Sequence) else []
    if wrong:
        raise UserError(f"{CHANGES_HINT}; this list holds {_describe_value(wrong[0])}")


def to_objects(objects: object) -> list[Any]:
    """Return given Python objects as a list.

    Raises:
        UserError: the value is not a list of objects.
    """
    if isinstance(objects, str | bytes | Mapping) or not isinstance(objects, Iterable):
        raise UserError(
            f"given is a list of functions, classes and objects, given=[…]; this is {_describe_value(objects)}"
        )
    return list(objects)


def check_callbacks(callbacks: object) -> None:
    """Check for a list of callbacks.

    Raises:
        UserError: the value is not a list of callbacks.
    """
    if isinstance(callbacks, str | bytes) or not isinstance(callbacks, Sequence):
        raise UserError(f"callbacks is a list, callbacks=[…], and this is {_describe_value(callbacks)}")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise UserError(
                "callbacks are objects of a class that derives from marft.Callback, and one is "
                f"{_describe_value(callback)}"
            )


def to_names(names: object, label: str, example: str) -> list[str]:
    """Return names as a list; a single name becomes a list with one entry.

    Raises:
        UserError: the value is not a list of strings.
    """
    if isinstance(names, str):
        return [names]
    if isinstance(names, bytes) or not isinstance(names, Iterable):
        raise UserError(f'{label} is a list of names, ["{example}"], and this is {_describe_value(names)}')
    items = list(names)
    for name in items:
        if not isinstance(name, str):
            raise UserError(f'{label} is a list of names, ["{example}"], and this one holds {_describe_value(name)}')
    return items


def to_paths(value: object, label: str) -> list[Path]:
    """Return files as a list of paths; a single path becomes a list with one entry.

    Raises:
        UserError: an entry is not a path.
    """
    items: list[Any] = (
        list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else [value]
    )
    for place in items:
        if not is_path(place):
            raise UserError(f"{label} are named by their files, texts or Paths, and this is {_describe_value(place)}")
    return [Path(place) for place in items]


def check_roles(roles: object) -> dict[str, str]:
    """Return a table from agent names in traces to roles.

    Raises:
        UserError: the value is not a table of strings.
    """
    table = {} if roles is None else roles
    if not isinstance(table, Mapping) or not all(isinstance(text, str) for pair in table.items() for text in pair):
        raise UserError(f'roles is a table of names, {{"Plan node": "planner"}}, and this is {_describe_value(roles)}')
    return dict(table)


def check_count(count: object, label: str) -> None:
    """Check for a non-negative integer.

    Raises:
        UserError: the value is not an integer, or is below 0.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise UserError(f"{label} is a whole number from 0 on, and this is {_describe_value(count)}")


def check_text(text: object, label: str) -> None:
    """Check for a string.

    Raises:
        UserError: the value is not a string.
    """
    if not isinstance(text, str):
        raise UserError(f"{label} is a text, and this is {_describe_value(text)}")


def _describe_value(value: object) -> str:
    """Return a description for a message: ``a list``, or a plain value such as ``-1``."""
    kind = type(value).__name__
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"{value!r}" if isinstance(value, bool | int | float | None) or value == "" else f"of type {kind}"
