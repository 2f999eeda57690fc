"""Stateful classes, as in the Berkeley function-calling leaderboard. Their public methods are tools."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from functools import lru_cache, wraps
from typing import Any, cast

from marft.common.texts import raised, storable
from marft.config.plugins import import_path
from marft_envs.tool_use.tables import LARGE
from marft_envs.tool_use.toolbox import Error, offered, writes


class Simulated:
    """Objects from several classes, with their methods under their own names.

    The state consists of the objects' attributes. Attributes that begin with ``_`` are ignored.

    Args:
        initial: initial state by class.
        involved: names of the task's classes; None for all.
        excluded: names of methods that the task does not offer.
        long_context: True to let classes extend their state to a long one.
    """

    classes: Mapping[str, type]
    owners: Mapping[str, str]  # class name of each method

    def __init__(
        self, initial: Mapping[str, Any], involved: Collection[str] | None = None, excluded: Collection[str] = (),
        long_context: bool = False,
    ) -> None:  # fmt: skip
        self.objects: dict[str, Any] = {}
        self.excluded = frozenset(excluded)
        self.results: list[str] = []  # results of all calls
        self.broken: list[str] = []  # always empty: these classes have no rules
        self._held_back: Mapping[str, Collection[str]] = {}
        self._turn = 0
        how = {"long_context": True} if long_context else {}
        for name in self.classes if involved is None else involved:
            made = self.classes[name]()
            if hasattr(made, "_load_scenario"):
                made._load_scenario(deepcopy(initial.get(name, {})), **how)
            self.objects[name] = made
        self._first = self._state()

    def hold_back(self, until: Mapping[str, Collection[str]]) -> None:
        """Withhold methods until later turns.

        Args:
            until: names of methods by the turn, counted from 0, in which they become available.
        """
        self._held_back = until
        self.excluded |= {name for names in until.values() for name in names}

    def next_turn(self) -> None:
        """Begin the next turn: offer the methods withheld until now."""
        self._turn += 1
        self.excluded -= set(self._held_back.get(str(self._turn), ()))

    def changes(self) -> dict[str, str]:
        """Return changed attributes, as values by path."""
        return {path: value for path, value in self._state().items() if self._first.get(path) != value}

    def _state(self) -> dict[str, str]:
        return {
            f"{name}/{key}": _text(value)
            for name, one in self.objects.items()
            for key, value in sorted(vars(one).items())
            if not key.startswith("_")
        }


def of_classes(paths: Mapping[str, str]) -> type[Simulated]:
    """Build a toolbox class with the methods from several classes.

    Args:
        paths: import path of each class by name: ``my_package.module:Class``.

    Raises:
        ValueError: a class cannot be imported, or two classes have a method with the same name.
    """
    return _made(tuple(sorted(paths.items())))


def made_of(toolbox: type[Simulated], data: Mapping[str, Any]) -> Simulated:
    """Create the objects for a task, in their initial state."""
    return toolbox(data["initial"], data["classes"], data["excluded"], data["long_context"])


def tools_of(made: Simulated) -> list[str]:
    """Return the names of a task's tools."""
    return [name for name in offered(type(made)) if made.owners[name] in made.objects and name not in made.excluded]


@lru_cache(maxsize=64)
def _made(paths: tuple[tuple[str, str], ...]) -> type[Simulated]:
    owners: dict[str, str] = {}
    body: dict[str, Any] = {"classes": {name: import_path(path) for name, path in paths}, "owners": owners}
    for name, cls in body["classes"].items():
        for method_name, method in inspect.getmembers(cls, inspect.isfunction):
            if method_name.startswith("_"):
                continue
            if method_name in body:
                raise ValueError(f"environment.data.classes: two of them have a method {method_name!r}; leave one out")
            body[method_name] = writes(_forwarded(name, method))
            owners[method_name] = name
    return cast("type[Simulated]", type("Simulated", (Simulated,), body))


def _forwarded(owner: str, method: Callable[..., object]) -> Callable[..., object]:
    @wraps(method)
    def forwarded(self: Simulated, *given: Any, **arguments: Any) -> object:
        if owner not in self.objects or method.__name__ in self.excluded:
            raise Error(f"this task has no tool {method.__name__!r}")
        try:
            result = method(self.objects[owner], *given, **arguments)
        except Exception as error:  # user-defined classes raise their own exceptions
            self.results.append(raised(error))
            raise Error(raised(error)) from error
        self.results.append(_text(result))
        return result

    return forwarded


def _text(value: object) -> str:
    """Serialize a value, so that equal values have equal text.

    The text does not depend on the order of keys or on the address of objects.
    """
    return storable(json.dumps(_plain(value, ())))


def _plain(value: object, around: tuple[int, ...]) -> object:
    """Convert a value to plain JSON types; 700.0 becomes 700.

    Objects become their attributes, without names that begin with ``_``. Circular references are cut. Integers beyond
    2⁶³ are written in hexadecimal, because Python limits the digits of decimal conversions.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and abs(value) > LARGE:
        return hex(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if id(value) in around:
        return "around it"
    within = (*around, id(value))
    if isinstance(value, Mapping):
        return [[str(key), _plain(value[key], within)] for key in sorted(value, key=str)]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(_plain(one, within)) for one in value)
    if isinstance(value, list | tuple):
        return [_plain(one, within) for one in value]
    if not hasattr(value, "__dict__"):
        return str(value)
    return {key: _plain(inner, within) for key, inner in sorted(vars(value).items()) if not key.startswith("_")}
