"""Stateful classes, as in the Berkeley function-calling leaderboard. Their public methods are tools."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from functools import lru_cache, wraps
from typing import Any, cast

from marft.common.errors import UserError
from marft.common.texts import format_error, replace_surrogates
from marft.config.plugins import import_object
from marft_envs.tool_use.toolbox import LARGE_INT, Error, tool_names, write_tool


class ClassToolbox:
    """Objects from several classes, with their methods under their own names.

    The state consists of the objects' attributes. Attributes that begin with ``_`` are ignored.

    Args:
        initial: initial state by class.
        class_names: names of the task's classes; None for all.
        excluded: names of methods that the task does not offer.
        long_context: True to let classes extend their state to a long one.
    """

    classes: Mapping[str, type]
    owners: Mapping[str, str]  # class name of each method

    def __init__(
        self,
        initial: Mapping[str, object],
        class_names: Collection[str] | None = None,
        excluded: Collection[str] = (),
        long_context: bool = False,
    ) -> None:
        self.objects: dict[str, object] = {}
        self.excluded = frozenset(excluded)
        self.results: list[str] = []  # results of all calls
        self.violations: list[str] = []  # always empty: these classes have no rules
        self._withheld: Mapping[str, Collection[str]] = {}
        self._turn = 0
        arguments = {"long_context": True} if long_context else {}
        for name in self.classes if class_names is None else class_names:
            instance = self.classes[name]()
            if hasattr(instance, "_load_scenario"):
                instance._load_scenario(deepcopy(initial.get(name, {})), **arguments)
            self.objects[name] = instance
        self._initial_state = self._object_state()

    def withhold(self, available_from: Mapping[str, Collection[str]]) -> None:
        """Withhold methods until later turns.

        Args:
            available_from: names of methods by the turn, counted from 0, in which they become available.
        """
        self._withheld = available_from
        self.excluded |= {name for names in available_from.values() for name in names}

    def next_turn(self) -> None:
        """Begin the next turn: offer the methods withheld until now."""
        self._turn += 1
        self.excluded -= set(self._withheld.get(str(self._turn), ()))

    def changes(self) -> dict[str, str]:
        """Return changed attributes, as values by path."""
        return {path: value for path, value in self._object_state().items() if self._initial_state.get(path) != value}

    def _object_state(self) -> dict[str, str]:
        return {
            f"{name}/{key}": _serialize(value)
            for name, instance in self.objects.items()
            for key, value in sorted(vars(instance).items())
            if not key.startswith("_")
        }


def build_toolbox_class(paths: Mapping[str, str]) -> type[ClassToolbox]:
    """Build a toolbox class with the methods from several classes.

    Args:
        paths: import path of each class by name: ``my_package.module:Class``.

    Raises:
        UserError: a class cannot be imported, or two classes have a method with the same name.
    """
    return _build_class(tuple(sorted(paths.items())))


def create_toolbox(toolbox: type[ClassToolbox], data: Mapping[str, Any]) -> ClassToolbox:
    """Create the objects for a task, in their initial state."""
    return toolbox(data["initial"], data["classes"], data["excluded"], data["long_context"])


def task_tool_names(toolbox: ClassToolbox) -> list[str]:
    """Return the names of a task's tools."""
    return [
        name
        for name in tool_names(type(toolbox))
        if toolbox.owners[name] in toolbox.objects and name not in toolbox.excluded
    ]


@lru_cache(maxsize=64)
def _build_class(paths: tuple[tuple[str, str], ...]) -> type[ClassToolbox]:
    owners: dict[str, str] = {}
    body: dict[str, Any] = {"classes": {name: import_object(path) for name, path in paths}, "owners": owners}
    for name, cls in body["classes"].items():
        for method_name, method in inspect.getmembers(cls, inspect.isfunction):
            if method_name.startswith("_"):
                continue
            if method_name in body:
                raise UserError(f"environment.data.classes: two of them have a method {method_name!r}; leave one out")
            body[method_name] = write_tool(_forward(name, method))
            owners[method_name] = name
    return cast("type[ClassToolbox]", type("ClassToolbox", (ClassToolbox,), body))


def _forward(owner: str, method: Callable[..., object]) -> Callable[..., object]:
    @wraps(method)
    def forwarded(self: ClassToolbox, *positional: object, **arguments: object) -> object:
        if owner not in self.objects or method.__name__ in self.excluded:
            raise Error(f"this task has no tool {method.__name__!r}")
        try:
            result = method(self.objects[owner], *positional, **arguments)
        except Exception as error:  # user-defined classes raise their own exceptions
            self.results.append(format_error(error))
            raise Error(format_error(error)) from error
        self.results.append(_serialize(result))
        return result

    return forwarded


def _serialize(value: object) -> str:
    """Serialize a value, so that equal values have equal text.

    The text does not depend on the order of keys or on the address of objects.
    """
    return replace_surrogates(json.dumps(_to_plain(value, ())))


def _to_plain(value: object, enclosing: tuple[int, ...]) -> object:
    """Convert a value to plain JSON types; 700.0 becomes 700.

    Objects become their attributes, without names that begin with ``_``. Circular references are cut. Integers beyond
    2⁶³ are written in hexadecimal, because Python limits the digits of decimal conversions.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and abs(value) > LARGE_INT:
        return hex(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if id(value) in enclosing:
        return "around it"
    within = (*enclosing, id(value))
    if isinstance(value, Mapping):
        return [[str(key), _to_plain(value[key], within)] for key in sorted(value, key=str)]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(_to_plain(item, within)) for item in value)
    if isinstance(value, list | tuple):
        return [_to_plain(item, within) for item in value]
    if not hasattr(value, "__dict__"):
        return str(value)
    return {key: _to_plain(inner, within) for key, inner in sorted(vars(value).items()) if not key.startswith("_")}
