"""Python objects (functions, classes, instances) in place of a recipe's import paths.

An importable object is saved by its import path. An object from a notebook or script is saved by name, ``"given in
Python: reward"``. To load such a recipe again, pass the object again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, WrapValidator

MARK = "given in Python: "
KEYS = ("name", "organization", "call", "grading", "embed", "condense")  # keys that take import paths
PARTS = ("environment", "channel", "team", "algorithm.credit", "algorithm.objective", "algorithm.schedule")


class Given(str):
    """Placeholder text for a Python object, with the object itself."""

    value: Any

    def __new__(cls, value: Any) -> Given:
        made = super().__new__(cls, MARK + name_of(value))
        made.value = value
        return made


def _kept(path: Any, handler: Callable[[Any], str]) -> str:
    return path if isinstance(path, Given) else handler(path)


ImportPath = Annotated[str, WrapValidator(_kept)]  # an import path, or a Python object in its place


def name_of(value: Any) -> str:
    """Return an object's name, or its class name."""
    if isinstance(value, partial):
        return name_of(value.func)
    return str(getattr(value, "__name__", type(value).__name__))


class NotGivenError(ValueError):
    """Missing Python object for a placeholder in a recipe.

    Args:
        missing: names of the missing objects, by key.
    """

    def __init__(self, message: str, missing: Mapping[str, str]) -> None:
        super().__init__(message)
        self.missing = missing


def refuse_missing(table: Mapping[str, Any], source: str) -> None:
    """Check that every placeholder in a recipe has its Python object.

    Args:
        source: origin of the tables, for the message.

    Raises:
        NotGivenError: an object is missing.
    """
    missing = dict(_missing(table))
    if missing:
        places = ", ".join(f"{name} ({place})" for place, name in missing.items())
        names = ", ".join(dict.fromkeys(missing.values()))
        first = next(iter(missing.values()))
        raise NotGivenError(
            f"{source} names what was given in Python and lies in no file: {places}. In Python, give it again: "
            f"given=[{names}], to marft.load_run, marft.train or marft.evaluate. For commands, put it into a module "
            f"and name that in its place: my_module:{first}",
            missing,
        )


def _missing(table: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield key and name for each missing object."""
    inner = table.items() if isinstance(table, Mapping) else enumerate(table) if isinstance(table, list) else ()
    for key, value in inner:
        where = f"{place}.{key}".removeprefix(".")
        if isinstance(value, str) and not isinstance(value, Given) and key in KEYS and value.startswith(MARK):
            yield where.removesuffix(".name").removesuffix(".organization"), value.removeprefix(MARK)
        yield from _missing(value, where)


def in_words(table: Mapping[str, Any], given: Iterable[Any] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Replace Python objects in a recipe or in changes by placeholders or import paths.

    Args:
        given: objects for placeholders that the tables already contain, as in a recorded run.

    Returns:
        The tables as a file could hold them, and the objects by placeholder.

    Raises:
        ValueError: two objects have the same name.
    """
    found: dict[str, Any] = {}
    for value in given:
        _note(Given(value), found)
    return {key: _in_words(value, key, found) for key, value in table.items()}, found


def _in_words(value: Any, place: str, found: dict[str, Any]) -> Any:
    """Return a value with Python objects replaced.

    Args:
        place: dotted key of the value, ``algorithm.credit``.
        found: objects by placeholder, extended in place.
    """
    if place == "rewards" and callable(value):
        value = [value]
    if isinstance(value, Mapping):
        return {key: _in_words(inner, f"{place}.{key}", found) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_in_words(inner, f"{place}.{number}", found) for number, inner in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        return _again(value, found)
    if not callable(value) and not isinstance(value, BaseModel):
        return value
    words = _words_for(value)
    if isinstance(words, Given):
        _note(words, found)
    return _shaped(value, words, place.split("."))


def _shaped(value: Any, words: str, place: Sequence[str]) -> Any:
    """Return the value that a recipe file would have for this object."""
    tag = "organization" if list(place) == ["team"] else "name"
    if isinstance(value, BaseModel):  # a plugin instance
        written = value.model_dump(mode="json", exclude_none=True)
        return {tag: words, **{key: inner for key, inner in written.items() if key in type(value).model_fields}}
    listed = len(place) == 2 and place[0] in ("rewards", "sinks", "tools")
    if ".".join(place) in PARTS or (listed and isinstance(value, type) and issubclass(value, BaseModel)):
        return {tag: words}
    return {"name": "function", "call": words} if listed else words


def _words_for(value: Any) -> str:
    """Return an import path if every process can import the object, else a placeholder."""
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    holder = sys.modules.get(module)
    importable = module != "__main__" and getattr(holder, "__file__", None)
    if importable and getattr(holder, name, None) is value:
        return f"{module}:{name}"
    return Given(value)


def _again(text: str, found: Mapping[str, Any]) -> str:
    return Given(found[text]) if text in found else text


def _note(given: Given, found: dict[str, Any]) -> None:
    if found.setdefault(str(given), given.value) is not given.value:
        name = str(given).removeprefix(MARK)
        raise ValueError(f"two different things called {name!r} are given, and a run is recorded by names; rename one")
