"""Kinds of plugins, and the checks of a class against the base class of its kind.

A base class declares its kind (:class:`marft.config.plugins.Plugin`)::

    class Channel(Plugin, ABC, kind="channels", label="a channel"):
        @abstractmethod
        def transform(self, messages: Sequence[Message]) -> Sequence[Message | None]: ...

Methods, arguments, attributes and the types of attributes are read from the base class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from types import FunctionType, NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

AnyMethod = TypeVar("AnyMethod", bound=Callable[..., object])
MISSING = object()
SYNC_OR_ASYNC = "__marft_sync_or_async__"


def sync_or_async(method: AnyMethod) -> AnyMethod:
    """Mark a method of a base class: a plugin may write it as a plain function or as a coroutine."""
    setattr(method, SYNC_OR_ASYNC, True)
    return method


@dataclass(frozen=True, eq=False)
class PluginKind:
    """Kind of plugins, as its base class declares it.

    Args:
        name: name of the kind, for example ``credits`` for the entry-point group ``marft.credits``.
        label: noun for the plugin, with its article.
        tag: key in the plugin's table that selects the class.
        together: methods with a default; a class overrides all of them or none.
        base: base class of the kind.
        parents: classes with members of the kind, the base class last; ``Plugin`` and its parents are left out.
    """

    name: str
    label: str
    tag: str
    together: Sequence[str]
    base: type
    parents: Sequence[type]

    @property
    def base_path(self) -> str:
        """Import path of the base class, for messages."""
        return f"{self.base.__module__}.{self.base.__qualname__}"

    @cached_property
    def methods(self) -> Mapping[str, FunctionType]:
        """Methods of the base class, by name."""
        return {name: value for name, value in self._members.items() if isinstance(value, FunctionType)}

    @cached_property
    def required_methods(self) -> Sequence[str]:
        """Names of the methods without a default."""
        return [name for name, method in self.methods.items() if _is_abstract(method)]

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """Types of the class attributes and properties of the base class, by name."""
        types: dict[str, Any] = {}
        for parent in self.parents:
            for name, hint in inspect.get_annotations(parent, eval_str=True).items():
                if getattr(hint, "__origin__", None) is ClassVar:
                    types[name] = get_args(hint)[0]
        for name, value in self._members.items():
            if isinstance(value, property) and value.fget:
                types[name] = inspect.get_annotations(value.fget, eval_str=True).get("return")
        return types

    @cached_property
    def _members(self) -> Mapping[str, Any]:
        return {
            name: value
            for parent in self.parents
            for name, value in vars(parent).items()
            if not name.startswith("_") or name == "__call__"
        }

    def class_problems(self, cls: type) -> list[str]:
        """Return reasons why a class is no plugin of this kind; empty if valid."""
        is_derived = issubclass(cls, self.base)
        overridden = [
            name
            for name, own in self.methods.items()
            if all(_find_attribute(cls, name) is not attribute for attribute in (MISSING, own))
        ]
        checked = [*self.required_methods, *(self.together if set(self.together) & set(overridden) else ())]
        checked += overridden if is_derived else []
        failed = {name: list(self._method_problems(name, cls)) for name in dict.fromkeys(checked)}
        problems = [problem for problems in failed.values() for problem in problems]
        if is_derived:
            problems += [f"no attribute {name}" for name in self.attributes if not _declares(cls, name)]
            problems += self._misspelled_attributes(cls)
        elif not problems:
            problems = ["it has another base"]
        if problems and all(failed[name] for name in self.required_methods):
            others = [kind for kind in PLUGIN_KINDS.values() if kind is not self and kind.required_methods]
            similar = next((kind.label for kind in others if kind._has_methods(cls)), "")
            problems += [f"it looks like {similar}"] if similar else []
        return problems

    def value_problems(self, plugin: object) -> list[str]:
        """Return invalid attribute values on a plugin; empty if valid."""
        problems = []
        for name, hint in self.attributes.items():
            allowed = _allowed_values(hint)
            if type in allowed and isinstance(self._members.get(name), property):
                continue  # the property may have to build the class
            if allowed and not _fits(getattr(plugin, name), allowed):
                choices = [item.__name__ if isinstance(item, type) else repr(item) for item in allowed]
                problems.append(f"its {name} is {getattr(plugin, name)!r}, not {' or '.join(choices)}")
        return problems

    def mismatch_message(self, cls: type, problems: Iterable[str]) -> str:
        """Return an error message for a class that is no plugin of this kind."""
        hint = "" if issubclass(cls, self.base) else f"; derive it from {self.base_path}"
        return f"{cls.__module__}.{cls.__qualname__} is not {self.label}: {', '.join(problems)}{hint}"

    def _misspelled_attributes(self, cls: type) -> list[str]:
        """Return messages for unknown attributes with names close to known ones."""
        known_names = {*self._members, *self.attributes} - {*self.required_methods}  # these are missed if misspelled
        new_names = {
            name
            for parent in cls.__mro__[: cls.__mro__.index(self.base)]
            for name in (*vars(parent), *vars(parent).get("__annotations__", ()))
        }
        return [
            f"it says {name}, which nobody reads; is {close[0]} meant?"
            for name in sorted(new_names - known_names - {*dir(self.base)})
            if not name.startswith("_") and (close := get_close_matches(name, known_names, n=1, cutoff=0.85))
        ]

    def _has_methods(self, cls: type) -> bool:
        return not any(list(self._method_problems(name, cls)) for name in self.required_methods)

    def _method_problems(self, name: str, cls: type) -> Iterable[str]:
        """Yield what is wrong with a method of a class, held against the method of the base class."""
        own = self.methods[name]
        arguments = list(inspect.signature(own).parameters)
        signature = f"{'async ' if inspect.iscoroutinefunction(own) else ''}def {name}({', '.join(arguments)})"
        attribute = _find_attribute(cls, name)
        if attribute is MISSING or attribute is own or not callable(getattr(attribute, "__func__", attribute)):
            yield f"no method {signature}"
            return
        if _is_abstract(attribute):
            yield f"{name} is abstract; write {signature}"
            return
        function = inspect.unwrap(getattr(attribute, "__func__", attribute))
        is_bound = not inspect.isfunction(attribute) and not isinstance(attribute, classmethod)
        try:
            inspect.signature(function).bind(*arguments[is_bound:])
        except TypeError:
            yield f"{name} does not take the arguments of {signature}"
        except ValueError:  # a builtin without a signature
            pass
        if hasattr(own, SYNC_OR_ASYNC):
            return
        is_async = inspect.iscoroutinefunction(function)
        if inspect.iscoroutinefunction(own) and not is_async:
            yield f"{name} is no coroutine; write {signature}"
        if not inspect.iscoroutinefunction(own) and (is_async or inspect.isasyncgenfunction(function)):
            yield f"{name} is a coroutine, which nobody would await; write {signature}"


PLUGIN_KINDS: dict[str, PluginKind] = {}  # kinds of the imported base classes, by name


def _allowed_values(hint: object) -> tuple[object, ...]:
    """Return the values of a type, each a plain type or a value; () for types that are not checked.

    >>> _allowed_values(Literal["", "task"]), _allowed_values(float), _allowed_values(tuple[float, float])
    (('', 'task'), (<class 'int'>, <class 'float'>), ())
    """
    if get_origin(hint) is Literal:
        return get_args(hint)
    if isinstance(hint, UnionType):
        parts = [_allowed_values(part) for part in get_args(hint)]
        return tuple(value for part in parts for value in part) if all(parts) else ()
    if hint is NoneType:
        return (None,)
    return (int, float) if hint is float else (hint,) if hint in (bool, int, str, type) else ()


def _fits(value: object, allowed: tuple[object, ...]) -> bool:
    types = tuple(item for item in allowed if isinstance(item, type))
    if isinstance(value, types) and (bool in types or not isinstance(value, bool)):
        return True
    return any(value is item or value == item for item in allowed if not isinstance(item, type))


def _is_abstract(attribute: object) -> bool:
    return bool(getattr(attribute, "__isabstractmethod__", False))


def _find_attribute(cls: type, name: str) -> Any:
    """Return the attribute from the class or a base class, without its metaclass; MISSING if absent."""
    return next((vars(parent)[name] for parent in cls.__mro__[:-1] if name in vars(parent)), MISSING)


def _declares(cls: type, name: str) -> bool:
    return _find_attribute(cls, name) is not MISSING or name in getattr(cls, "model_fields", {})
