"""Plugins: named run components, with fields as recipe keys and methods for the work.

An environment, organization, credit, objective or schedule is one class in one file, derived from the base class of its
kind (:mod:`marft.config.interfaces`). A recipe selects it by a name that an installed package, MARFT included,
registered under the entry-point group ``marft.<kind>``. The alternative is an import path
(``my_package.module:Class``). The class is checked against its base class when the recipe is loaded
(:mod:`marft.config.plugin_kinds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    GetCoreSchemaHandler,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from marft.common.error_origin import describe_error
from marft.common.errors import UserError
from marft.common.packages import is_first_party, missing_extra, registered_entry_points, version_problem
from marft.common.user_modules import import_user_module
from marft.config.paths import RECIPE_FOLDER, check_name_conflict
from marft.config.plugin_kinds import PLUGIN_KINDS, PluginKind
from marft.config.python_objects import ImportPath, ObjectPlaceholder
from marft.config.settings import Settings, did_you_mean

IRREGULAR_SINGULARS = {"memories": "memory"}  # kinds with an irregular plural


class Plugin(Settings):
    """Base class for all plugins. Keeps its name from the recipe for saving.

    The base class of a kind declares it: ``class Credit(Plugin, ABC, kind="credits", label="a credit")``. A field of
    such a type takes the table of any plugin of the kind, or an instance.
    """

    plugin_kind: ClassVar[PluginKind | None] = None  # set by the base class of a kind
    _name: str = PrivateAttr(default="")

    def __init_subclass__(
        cls, kind: str = "", label: str = "", tag: str = "name", together: Sequence[str] = (), **options: Any
    ) -> None:
        """Declare a kind of plugins.

        Args:
            kind: name of the kind, ``credits`` for the entry-point group ``marft.credits``; "": no kind.
            label: noun for the plugin, with its article.
            tag: key in the plugin's table that selects the class.
            together: methods with a default; a class overrides all of them or none.
            options: options of the pydantic model.
        """
        super().__init_subclass__(**options)
        if kind:
            parents = [parent for parent in reversed(cls.__mro__) if parent not in Plugin.__mro__]
            cls.plugin_kind = PLUGIN_KINDS[kind] = PluginKind(kind, label, tag, together, cls, parents)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of a class, or for the base class of a kind the schema of any plugin of the kind."""
        kind = cls.plugin_kind
        if kind is None or kind.base is not cls:
            return super().__get_pydantic_core_schema__(source, handler)
        return core_schema.with_info_plain_validator_function(
            lambda table, info: _resolve(kind, table, info),
            serialization=core_schema.simple_ser_schema("any"),  # with the fields of the actual class
        )

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
        tag = self.plugin_kind.tag if self.plugin_kind else "name"
        return {tag: self.name, **serialize(self)}


def singular(kind: str) -> str:
    """Return the singular for a plugin kind.

    >>> singular("credits"), singular("memories")
    ('credit', 'memory')
    """
    return IRREGULAR_SINGULARS.get(kind, kind[:-1])


def plugin_names(kind: str) -> list[str]:
    """Return the registered plugin names for ``kind``."""
    return sorted(registered_entry_points(kind))


def load_registered(kind: str, name: str) -> Any:
    """Import the object registered for ``kind`` under a name.

    Raises:
        UserError: no package registers the name, or the import fails.
    """
    entry_points = registered_entry_points(kind)
    if name not in entry_points:
        raise UserError(
            missing_extra(kind, name) or f"no {singular(kind)} is called {name!r}{did_you_mean(name, entry_points)}"
        )
    if problem := version_problem(entry_points[name]):
        raise UserError(problem)
    return _import(entry_points[name].value, entry_points[name].load)


def find_plugin(kind: str, name: str, context: Mapping[str, object] | None = None) -> type[Plugin]:
    """Return the plugin class for a name or import path.

    Args:
        context: validation context with the recipe's folder.

    Raises:
        UserError: the name is unknown, the import fails, or the object is not a plugin of this kind.
    """
    expected = PLUGIN_KINDS[kind]
    target = import_object(name, context) if ":" in name else load_registered(kind, name)
    if isinstance(target, Plugin):
        target = type(target)
    if not (isinstance(target, type) and issubclass(target, Plugin)):
        raise UserError(f"{name!r} is not {expected.label}: its class must derive from {expected.base_path}")
    problems = expected.class_problems(target)
    if problems:
        raise UserError(expected.mismatch_message(target, problems))
    return target


def import_path_module(text: str) -> str:
    """Return the module in an import path; "" for other text.

    >>> [import_path_module(text) for text in ("my_package.team:solve", "équipe:résous", "Answer: 5", "my-team:solve")]
    ['my_package.team', 'équipe', '', '']
    """
    module, _, name = text.partition(":")
    return module if all(map(str.isidentifier, (*module.split("."), name))) else ""


def user_import_path_module(text: str) -> str:
    """Return the user module in an import path; "" for MARFT's own modules and other text."""
    module = import_path_module(text)
    return "" if is_first_party(module) else module


def import_object(path: str, context: Mapping[str, object] | None = None) -> Any:
    """Import the object behind ``"package.module:name"``.

    Args:
        context: validation context with the recipe's folder.

    Raises:
        UserError: the import fails, or the recipe's folder has another module with the same name.
    """
    if isinstance(path, ObjectPlaceholder):
        return path.value
    module = import_path_module(path)
    if not module:
        raise UserError(f"cannot import {path!r}: it must look like my_package.module:name")
    folder = str((context or {}).get(RECIPE_FOLDER) or "")
    target = _import(path, lambda: getattr(import_user_module(module, folder), path.partition(":")[2]))
    check_name_conflict(path, context)
    return target


def _check_function(path: str, info: ValidationInfo) -> str:
    if path and not callable(import_object(path, info.context)):
        raise PydanticCustomError("function", "{path} is no function", {"path": repr(path)})
    return path


FunctionPath = Annotated[ImportPath, AfterValidator(_check_function)]  # import path of a function, or ""


def _import(path: str, load: Callable[[], object]) -> object:
    try:
        return load()
    except (Exception, SystemExit) as error:
        raise UserError(f"cannot import {path!r}: {describe_error(error)}{_import_hint(path, error)}") from error


def _import_hint(path: str, error: BaseException) -> str:
    """Return a remedy if the module itself, rather than one of its imports, is missing."""
    module = path.partition(":")[0]
    if not isinstance(error, ModuleNotFoundError) or not f"{module}.".startswith(f"{error.name}."):
        return ""
    return (
        f"; it is neither installed nor in {Path.cwd()}, nor beside the recipe: run marft from the folder that holds "
        f"{module.split('.')[0]}, or install it"
    )


def _resolve(kind: PluginKind, table: object, info: ValidationInfo) -> Plugin:
    """Return the plugin for its table in a recipe; an instance stays as it is."""
    if isinstance(table, Plugin):
        if not isinstance(table, kind.base):
            raise UserError(kind.mismatch_message(type(table), kind.class_problems(type(table))))
        return table
    if not isinstance(table, dict):
        raise PydanticCustomError("plugin_table", "must be a table with a {tag}", {"tag": repr(kind.tag)})
    name = table.get(kind.tag)
    if not isinstance(name, str):
        known = ", ".join(plugin_names(kind.name))
        raise PydanticCustomError("plugin_tag", "needs {tag}: one of {known}", {"tag": repr(kind.tag), "known": known})
    cls = find_plugin(kind.name, name, info.context)
    plugin = _validate_plugin(cls, {key: value for key, value in table.items() if key != kind.tag}, info.context)
    if isinstance(name, ObjectPlaceholder) and isinstance(name.value, Plugin):
        plugin = _copy_instance(name.value, plugin)
    plugin._name = name
    problems = kind.value_problems(plugin)
    if problems:
        raise UserError(kind.mismatch_message(cls, problems))
    return plugin


def _copy_instance(instance: Plugin, validated: Plugin) -> Plugin:
    """Return a copy of the given instance, with state outside its fields.

    Raises:
        UserError: the recipe changes a field of the instance.
    """
    if any(getattr(instance, key) != getattr(validated, key) for key in type(instance).model_fields):
        raise UserError(f"{type(instance).__name__} was given as an object; change its fields there, or give its class")
    return instance.model_copy()


def _validate_plugin(cls: type[Plugin], table: dict[str, object], context: Mapping[str, object] | None) -> Plugin:
    try:
        return cls.model_validate(table, context=context)
    except (ValidationError, PydanticCustomError):
        raise
    except Exception as error:  # validators of user code can raise anything
        raise UserError(f"{cls.__module__}.{cls.__qualname__} raised {describe_error(error)}") from error
