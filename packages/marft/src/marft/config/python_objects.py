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

from marft.common.errors import UserError

PLACEHOLDER_PREFIX = "given in Python: "
IMPORT_PATH_KEYS = ("name", "organization", "call", "grading", "embed", "summarizer")  # keys that take import paths
PLUGIN_TABLES = ("environment", "channel", "team", "algorithm.credit", "algorithm.objective", "algorithm.schedule")


class ObjectPlaceholder(str):
    """Placeholder text for a Python object, with the object itself."""

    value: Any

    def __new__(cls, value: Any) -> ObjectPlaceholder:
        placeholder = super().__new__(cls, PLACEHOLDER_PREFIX + object_name(value))
        placeholder.value = value
        return placeholder


def _keep_placeholder(path: Any, handler: Callable[[Any], str]) -> str:
    return path if isinstance(path, ObjectPlaceholder) else handler(path)


ImportPath = Annotated[str, WrapValidator(_keep_placeholder)]  # an import path, or a Python object in its place


def object_name(value: Any) -> str:
    """Return an object's name, or its class name."""
    if isinstance(value, partial):
        return object_name(value.func)
    return str(getattr(value, "__name__", type(value).__name__))


class MissingObjectError(UserError):
    """Missing Python object for a placeholder in a recipe.

    Args:
        missing: names of the missing objects, by key.
    """

    def __init__(self, message: str, missing: Mapping[str, str]) -> None:
        super().__init__(message)
        self.missing = missing


def check_objects(table: Mapping[str, Any], source: str) -> None:
    """Check that every placeholder in a recipe has its Python object.

    Args:
        source: origin of the tables, for the message.

    Raises:
        MissingObjectError: an object is missing.
    """
    missing = dict(_missing_objects(table))
    if missing:
        places = ", ".join(f"{name} ({place})" for place, name in missing.items())
        names = ", ".join(dict.fromkeys(missing.values()))
        first = next(iter(missing.values()))
        raise MissingObjectError(
            f"{source} names what was given in Python and lies in no file: {places}. In Python, give it again: "
            f"given=[{names}], to marft.load_run, marft.train or marft.evaluate. For commands, put it into a module "
            f"and name that in its place: my_module:{first}",
            missing,
        )


def _missing_objects(table: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield key and name for each missing object."""
    inner = table.items() if isinstance(table, Mapping) else enumerate(table) if isinstance(table, list) else ()
    for key, value in inner:
        key_path = f"{prefix}.{key}".removeprefix(".")
        if (
            isinstance(value, str)
            and not isinstance(value, ObjectPlaceholder)
            and key in IMPORT_PATH_KEYS
            and value.startswith(PLACEHOLDER_PREFIX)
        ):
            yield key_path.removesuffix(".name").removesuffix(".organization"), value.removeprefix(PLACEHOLDER_PREFIX)
        yield from _missing_objects(value, key_path)


def replace_objects(table: Mapping[str, Any], objects: Iterable[Any] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Replace Python objects in a recipe or in changes by placeholders or import paths.

    Args:
        objects: objects for placeholders that the tables already contain, as in a recorded run.

    Returns:
        The tables as a file could hold them, and the objects by placeholder.

    Raises:
        UserError: two objects have the same name.
    """
    by_placeholder: dict[str, Any] = {}
    for value in objects:
        _register(ObjectPlaceholder(value), by_placeholder)
    return {key: _replace_objects(value, key, by_placeholder) for key, value in table.items()}, by_placeholder


def _replace_objects(value: Any, key_path: str, by_placeholder: dict[str, Any]) -> Any:
    """Return a value with Python objects replaced.

    Args:
        key_path: dotted key of the value, ``algorithm.credit``.
        by_placeholder: objects by placeholder, extended in place.
    """
    if key_path == "rewards" and callable(value):
        value = [value]
    if isinstance(value, Mapping):
        return {key: _replace_objects(inner, f"{key_path}.{key}", by_placeholder) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_objects(inner, f"{key_path}.{number}", by_placeholder) for number, inner in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        return _restore_placeholder(value, by_placeholder)
    if not callable(value) and not isinstance(value, BaseModel):
        return value
    text = _import_path_of(value)
    if isinstance(text, ObjectPlaceholder):
        _register(text, by_placeholder)
    return _recipe_value(value, text, key_path.split("."))


def _recipe_value(value: Any, text: str, key_path: Sequence[str]) -> Any:
    """Return the value that a recipe file would have for this object."""
    tag = "organization" if list(key_path) == ["team"] else "name"
    if isinstance(value, BaseModel):  # a plugin instance
        dumped = value.model_dump(mode="json", exclude_none=True)
        return {tag: text, **{key: inner for key, inner in dumped.items() if key in type(value).model_fields}}
    in_list = len(key_path) == 2 and key_path[0] in ("callbacks", "rewards", "sinks", "tools")
    if ".".join(key_path) in PLUGIN_TABLES or (in_list and isinstance(value, type) and issubclass(value, BaseModel)):
        return {tag: text}
    return {"name": "function", "call": text} if in_list else text


def _import_path_of(value: Any) -> str:
    """Return an import path if every process can import the object, else a placeholder."""
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    holder = sys.modules.get(module)
    importable = module != "__main__" and getattr(holder, "__file__", None)
    if importable and getattr(holder, name, None) is value:
        return f"{module}:{name}"
    return ObjectPlaceholder(value)


def _restore_placeholder(text: str, by_placeholder: Mapping[str, Any]) -> str:
    return ObjectPlaceholder(by_placeholder[text]) if text in by_placeholder else text


def _register(placeholder: ObjectPlaceholder, by_placeholder: dict[str, Any]) -> None:
    if by_placeholder.setdefault(str(placeholder), placeholder.value) is not placeholder.value:
        name = str(placeholder).removeprefix(PLACEHOLDER_PREFIX)
        raise UserError(f"two different things called {name!r} are given, and a run is recorded by names; rename one")
