"""Plugins: named run components, with fields as recipe keys and methods for the work.

An environment, organization, credit, objective or schedule is one class in one file. A recipe selects it by a name that
an installed package, MARFT included, registered under the entry-point group ``marft.<kind>``. The alternative is an
import path (``my_package.module:Class``). The class is validated against its specification (:mod:`marft.config.seams`)
when the recipe is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import (
    BeforeValidator,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
)
from pydantic_core import PydanticCustomError

from marft.common.faults import described
from marft.common.ownership import is_ours
from marft.common.registry import registered
from marft.common.satellites import not_installed, version_problem
from marft.common.user_modules import import_named
from marft.config.folders import FOLDER, refuse_namesakes
from marft.config.given import Given
from marft.config.seams import SEAMS, class_problems, refusal, value_problems
from marft.config.settings import Settings, did_you_mean

TAGS = {"organizations": "organization", "engines": "kind"}
SINGULAR = {"memories": "memory"}  # kinds with an irregular plural


class Plugin(Settings):
    """Base class for all plugins. Keeps its name from the recipe for saving."""

    _kind: str = PrivateAttr(default="")
    _name: str = PrivateAttr(default="")

    @property
    def name(self) -> str:
        """Name in the recipe; default: the class name."""
        return self._name or type(self).__name__

    @classmethod
    def known_values(cls) -> Mapping[str, Sequence[str]]:
        """Return the allowed values for keys with a fixed list of names, by key."""
        return {}

    def problems(self, roles: Sequence[str]) -> Iterable[str]:  # noqa: ARG002
        """Return problems with the plugin in a team with these roles, each with a remedy."""
        return ()

    @model_serializer(mode="wrap")
    def _with_its_name(self, serialise: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {TAGS.get(self._kind, "name"): self.name, **serialise(self)}


def one_of(kind: str) -> str:
    """Return the singular for a plugin kind.

    >>> one_of("credits"), one_of("memories")
    ('credit', 'memory')
    """
    return SINGULAR.get(kind, kind[:-1])


def called(plugin: Plugin) -> str:
    """Return a plugin's label for messages: ``credit 'my_package.credits:Median'``."""
    return f"{one_of(plugin._kind) or 'part'} {plugin.name!r}"


def plugin_names(kind: str) -> list[str]:
    """Return the registered plugin names for ``kind``."""
    return sorted(registered(kind))


def load_registered(kind: str, name: str) -> Any:
    """Import the object registered for ``kind`` under a name.

    Raises:
        ValueError: no package registers the name, or the import fails.
    """
    known = registered(kind)
    if name not in known:
        raise ValueError(
            not_installed(kind, name) or f"no {one_of(kind)} is called {name!r}{did_you_mean(name, known)}"
        )
    if problem := version_problem(known[name]):
        raise ValueError(problem)
    return _imported(known[name].value, known[name].load)


def find_plugin(kind: str, name: str, context: Mapping[str, object] | None = None) -> type[Plugin]:
    """Return the plugin class for a name or import path.

    Args:
        context: validation context with the recipe's folder.

    Raises:
        ValueError: the name is unknown, the import fails, or the object is not a plugin of this kind.
    """
    found = import_path(name, context) if ":" in name else load_registered(kind, name)
    if isinstance(found, Plugin):
        found = type(found)
    if not (isinstance(found, type) and issubclass(found, Plugin)):
        raise ValueError(f"{name!r} is not {SEAMS[kind].noun}: its class must derive from {SEAMS[kind].base}")
    problems = class_problems(kind, found)
    if problems:
        raise ValueError(refusal(kind, found, problems))
    return found


def module_in(text: str) -> str:
    """Return the module in an import path; "" for other text.

    >>> [module_in(text) for text in ("my_package.team:solve", "équipe:résous", "Answer: 5", "my-team:solve")]
    ['my_package.team', 'équipe', '', '']
    """
    module, _, name = text.partition(":")
    return module if all(map(str.isidentifier, (*module.split("."), name))) else ""


def their_module_in(text: str) -> str:
    """Return the user module in an import path; "" for MARFT's own modules and other text."""
    module = module_in(text)
    return "" if is_ours(module) else module


def import_path(path: str, context: Mapping[str, object] | None = None) -> Any:
    """Import the object behind ``"package.module:name"``.

    Args:
        context: validation context with the recipe's folder.

    Raises:
        ValueError: the import fails, or the recipe's folder has another module with the same name.
    """
    if isinstance(path, Given):
        return path.value
    module = module_in(path)
    if not module:
        raise ValueError(f"cannot import {path!r}: it must look like my_package.module:name")
    folder = str((context or {}).get(FOLDER) or "")
    found = _imported(path, lambda: getattr(import_named(module, folder), path.partition(":")[2]))
    refuse_namesakes(path, context)
    return found


def _imported(path: str, load: Callable[[], object]) -> object:
    try:
        return load()
    except (Exception, SystemExit) as error:
        raise ValueError(f"cannot import {path!r}: {described(error)}{_where_to_look(path, error)}") from error


def _where_to_look(path: str, error: BaseException) -> str:
    """Return a remedy if the module itself, rather than one of its imports, is missing."""
    module = path.partition(":")[0]
    if not isinstance(error, ModuleNotFoundError) or not f"{module}.".startswith(f"{error.name}."):
        return ""
    return (
        f"; it is neither installed nor in {Path.cwd()}, nor beside the recipe: run marft from the folder that holds "
        f"{module.split('.')[0]}, or install it"
    )


def resolver(kind: str, optional: bool = False) -> object:
    """Return a validator for keys with a plugin: accepts its table or an instance.

    Args:
        optional: accept None too.
    """
    tag = TAGS.get(kind, "name")

    def resolve(table: object, info: ValidationInfo) -> object:
        if isinstance(table, Plugin) or (optional and table is None):
            return table
        if not isinstance(table, dict):
            raise PydanticCustomError("plugin_table", "must be a table with a {tag}", {"tag": repr(tag)})
        if not isinstance(table.get(tag), str):
            known = ", ".join(plugin_names(kind))
            raise PydanticCustomError("plugin_tag", "needs {tag}: one of {known}", {"tag": repr(tag), "known": known})
        cls = find_plugin(kind, table[tag], info.context)
        plugin = _made(cls, {key: value for key, value in table.items() if key != tag}, info.context)
        if isinstance(table[tag], Given) and isinstance(table[tag].value, Plugin):
            plugin = _itself(table[tag].value, plugin)
        plugin._kind, plugin._name = kind, table[tag]
        problems = value_problems(kind, plugin)
        if problems:
            raise ValueError(refusal(kind, cls, problems))
        return plugin

    return BeforeValidator(resolve)


def _itself(given: Plugin, made: Plugin) -> Plugin:
    """Return a copy of the given instance, with state outside its fields.

    Raises:
        ValueError: the recipe changes a field of the instance.
    """
    if any(getattr(given, key) != getattr(made, key) for key in type(given).model_fields):
        raise ValueError(f"{type(given).__name__} was given as an object; change its fields there, or give its class")
    return given.model_copy()


def _made(cls: type[Plugin], table: dict[str, object], context: Mapping[str, object] | None) -> Plugin:
    try:
        return cls.model_validate(table, context=context)
    except (ValidationError, PydanticCustomError):
        raise
    except Exception as error:
        raise ValueError(f"{cls.__module__}.{cls.__qualname__} raised {described(error)}") from error
