"""Argument checks for the Python API: a wrong type raises a clear error before any work begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marft.common.observing import Observer

TABLES_OR_WORDS = 'changes are a table, {"training.steps": 5}, or a list of words, ["--training.steps", "5"]'


def is_path(value: object) -> bool:
    """Return True for a non-empty path."""
    return isinstance(value, str | Path) and bool(str(value))


def check_place(value: object, what: str) -> None:
    """Check for a path.

    Args:
        what: noun for the message: ``a run``.

    Raises:
        ValueError: the value is not a path.
    """
    if not is_path(value):
        raise ValueError(f"{what} is named by its folder, a text or a Path, and this is {_shown(value)}")


def check_words(changes: object) -> None:
    """Check for a list of command-line arguments.

    Raises:
        ValueError: the value is not a list of strings.
    """
    if isinstance(changes, str | bytes) or not isinstance(changes, Iterable):
        raise ValueError(f"{TABLES_OR_WORDS}; this is {_shown(changes)}")
    wrong = [word for word in changes if not isinstance(word, str)] if isinstance(changes, Sequence) else []
    if wrong:
        raise ValueError(f"{TABLES_OR_WORDS}; this list holds {_shown(wrong[0])}")


def things_in(given: object) -> list[Any]:
    """Return given Python objects as a list.

    Raises:
        ValueError: the value is not a list of objects.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ValueError(f"given is a list of functions, classes and objects, given=[…]; this is {_shown(given)}")
    return list(given)


def check_observer(observer: object) -> None:
    """Check for a callback or None.

    Raises:
        ValueError: the value is not a callback.
    """
    if observer is not None and not isinstance(observer, Observer):
        raise ValueError(
            f"observer is an object of a class that derives from marft.Observer, and this is {_shown(observer)}"
        )


def names_in(names: object, what: str, example: str) -> list[str]:
    """Return names as a list; a single name becomes a list with one entry.

    Raises:
        ValueError: the value is not a list of strings.
    """
    if isinstance(names, str):
        return [names]
    if isinstance(names, bytes) or not isinstance(names, Iterable):
        raise ValueError(f'{what} is a list of names, ["{example}"], and this is {_shown(names)}')
    found = list(names)
    for name in found:
        if not isinstance(name, str):
            raise ValueError(f'{what} is a list of names, ["{example}"], and this one holds {_shown(name)}')
    return found


def places_in(places: object, what: str) -> list[Path]:
    """Return files as a list of paths; a single path becomes a list with one entry.

    Raises:
        ValueError: an entry is not a path.
    """
    found: list[Any] = (
        list(places) if isinstance(places, Iterable) and not isinstance(places, str | bytes | Mapping) else [places]
    )
    for place in found:
        if not is_path(place):
            raise ValueError(f"{what} are named by their files, texts or Paths, and this is {_shown(place)}")
    return [Path(place) for place in found]


def check_roles(roles: object) -> dict[str, str]:
    """Return a table from agent names in traces to roles.

    Raises:
        ValueError: the value is not a table of strings.
    """
    table = {} if roles is None else roles
    if not isinstance(table, Mapping) or not all(isinstance(text, str) for pair in table.items() for text in pair):
        raise ValueError(f'roles is a table of names, {{"Plan node": "planner"}}, and this is {_shown(roles)}')
    return dict(table)


def check_count(count: object, what: str) -> None:
    """Check for a non-negative integer.

    Raises:
        ValueError: the value is not an integer, or is below 0.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"{what} is a whole number from 0 on, and this is {_shown(count)}")


def check_text(text: object, what: str) -> None:
    """Check for a string.

    Raises:
        ValueError: the value is not a string.
    """
    if not isinstance(text, str):
        raise ValueError(f"{what} is a text, and this is {_shown(text)}")


def _shown(value: object) -> str:
    """Return a description for a message: ``a list``, or a plain value such as ``-1``."""
    kind = type(value).__name__
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"{value!r}" if isinstance(value, bool | int | float | None) or value == "" else f"of type {kind}"
