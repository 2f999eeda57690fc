"""Plugins: named run components, with fields as recipe keys and methods for the work.

An environment, organization, credit, objective or schedule is one class in one file. A recipe selects it by a name that
an installed package, MARFT included, registered under the entry-point group ``marft.<kind>``. The alternative is an
import path (``my_package.module:Class``). The class is validated against its specification
(:mod:`marft.config.plugin_specs`) when the recipe is loaded.
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

from marft.common.error_origin import describe_error
from marft.common.first_party import is_first_party
from marft.common.packages import missing_extra, version_problem
from marft.common.registry import registered_entry_points
from marft.common.user_modules import import_user_module
from marft.config.paths import RECIPE_FOLDER, check_name_conflict
from marft.config.plugin_specs import PLUGIN_SPECS, class_problems, mismatch_message, value_problems
from marft.config.python_objects import ObjectPlaceholder
from marft.config.settings import Settings, did_you_mean

TAG_KEYS = {"organizations": "organization", "engines": "kind"}
IRREGULAR_SINGULARS = {"memories": "memory"}  # kinds with an irregular plural


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
    def _serialize_with_name(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {TAG_KEYS.get(self._kind, "name"): self.name, **serialize(self)}


def singular(kind: str) -> str:
    """Return the singular for a plugin kind.

    >>> singular("credits"), singular("memories")
    ('credit', 'memory')
    """
    return IRREGULAR_SINGULARS.get(kind, kind[:-1])


def plugin_label(plugin: Plugin) -> str:
    """Return a plugin's label for messages: ``credit 'my_package.credits:Median'``."""
    return f"{singular(plugin._kind) or 'part'} {plugin.name!r}"


def plugin_names(kind: str) -> list[str]:
    """Return the registered plugin names for ``kind``."""
    return sorted(registered_entry_points(kind))


def load_registered(kind: str, name: str) -> Any:
    """Import the object registered for ``kind`` under a name.

    Raises:
        ValueError: no package registers the name, or the import fails.
    """
    entry_points = registered_entry_points(kind)
    if name not in entry_points:
        raise ValueError(
            missing_extra(kind, name) or f"no {singular(kind)} is called {name!r}{did_you_mean(name, entry_points)}"
        )
    if problem := version_problem(entry_points[name]):
        raise ValueError(problem)
    return _import(entry_points[name].value, entry_points[name].load)


def find_plugin(kind: str, name: str, context: Mapping[str, object] | None = None) -> type[Plugin]:
    """Return the plugin class for a name or import path.

    Args:
        context: validation context with the recipe's folder.

    Raises:
        ValueError: the name is unknown, the import fails, or the object is not a plugin of this kind.
    """
    target = import_object(name, context) if ":" in name else load_registered(kind, name)
    if isinstance(target, Plugin):
        target = type(target)
    if not (isinstance(target, type) and issubclass(target, Plugin)):
        raise ValueError(
            f"{name!r} is not {PLUGIN_SPECS[kind].label}: its class must derive from {PLUGIN_SPECS[kind].base}"
        )
    problems = class_problems(kind, target)
    if problems:
        raise ValueError(mismatch_message(kind, target, problems))
    return target


def module_name(text: str) -> str:
    """Return the module in an import path; "" for other text.

    >>> [module_name(text) for text in ("my_package.team:solve", "équipe:résous", "Answer: 5", "my-team:solve")]
    ['my_package.team', 'équipe', '', '']
    """
    module, _, name = text.partition(":")
    return module if all(map(str.isidentifier, (*module.split("."), name))) else ""


def user_module_name(text: str) -> str:
    """Return the user module in an import path; "" for MARFT's own modules and other text."""
    module = module_name(text)
    return "" if is_first_party(module) else module


def import_object(path: str, context: Mapping[str, object] | None = None) -> Any:
    """Import the object behind ``"package.module:name"``.

    Args:
        context: validation context with the recipe's folder.

    Raises:
        ValueError: the import fails, or the recipe's folder has another module with the same name.
    """
    if isinstance(path, ObjectPlaceholder):
        return path.value
    module = module_name(path)
    if not module:
        raise ValueError(f"cannot import {path!r}: it must look like my_package.module:name")
    folder = str((context or {}).get(RECIPE_FOLDER) or "")
    target = _import(path, lambda: getattr(import_user_module(module, folder), path.partition(":")[2]))
    check_name_conflict(path, context)
    return target


def _import(path: str, load: Callable[[], object]) -> object:
    try:
        return load()
    except (Exception, SystemExit) as error:
        raise ValueError(f"cannot import {path!r}: {describe_error(error)}{_import_hint(path, error)}") from error


def _import_hint(path: str, error: BaseException) -> str:
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
    tag = TAG_KEYS.get(kind, "name")

    def resolve(table: object, info: ValidationInfo) -> object:
        if isinstance(table, Plugin) or (optional and table is None):
            return table
        if not isinstance(table, dict):
            raise PydanticCustomError("plugin_table", "must be a table with a {tag}", {"tag": repr(tag)})
        if not isinstance(table.get(tag), str):
            names = ", ".join(plugin_names(kind))
            raise PydanticCustomError("plugin_tag", "needs {tag}: one of {known}", {"tag": repr(tag), "known": names})
        cls = find_plugin(kind, table[tag], info.context)
        plugin = _validate_plugin(cls, {key: value for key, value in table.items() if key != tag}, info.context)
        if isinstance(table[tag], ObjectPlaceholder) and isinstance(table[tag].value, Plugin):
            plugin = _copy_instance(table[tag].value, plugin)
        plugin._kind, plugin._name = kind, table[tag]
        problems = value_problems(kind, plugin)
        if problems:
            raise ValueError(mismatch_message(kind, cls, problems))
        return plugin

    return BeforeValidator(resolve)


def _copy_instance(instance: Plugin, validated: Plugin) -> Plugin:
    """Return a copy of the given instance, with state outside its fields.

    Raises:
        ValueError: the recipe changes a field of the instance.
    """
    if any(getattr(instance, key) != getattr(validated, key) for key in type(instance).model_fields):
        raise ValueError(
            f"{type(instance).__name__} was given as an object; change its fields there, or give its class"
        )
    return instance.model_copy()


def _validate_plugin(cls: type[Plugin], table: dict[str, object], context: Mapping[str, object] | None) -> Plugin:
    try:
        return cls.model_validate(table, context=context)
    except (ValidationError, PydanticCustomError):
        raise
    except Exception as error:
        raise ValueError(f"{cls.__module__}.{cls.__qualname__} raised {describe_error(error)}") from error
