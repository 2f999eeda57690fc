"""What the keys of a recipe are: type, default and meaning, read off the settings themselves."""

from __future__ import annotations

import json
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from marft.config.plugins import Plugin
from marft.config.settings import MAX_COUNT, MAX_NUMBER, Settings
from marft.envs.graders import AnswerGrader

PARTS = (Plugin, AnswerGrader)
LONGEST = 60  # characters of a default that is shown
BOUNDS = {Ge: ("ge", "≥"), Gt: ("gt", ">"), Le: ("le", "≤"), Lt: ("lt", "<")}


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table.

    Args:
        type: as TOML has it: ``integer, ≥ 1``.
        default: as TOML has it; "" where the key must be given.
    """

    name: str
    type: str
    default: str
    meaning: str


def keys_of(cls: type[Settings]) -> list[Key]:
    """The keys of a table, in their order.

    Raises:
        ValueError: one of them has no meaning.
    """
    for name, field in cls.model_fields.items():
        if not field.description:
            raise ValueError(f"{cls.__module__}.{cls.__name__}.{name}: say in Field(description=...) what it means")
    fields = cls.model_fields.items()
    return [Key(name, type_of(field), default_of(field), field.description or "") for name, field in fields]


def type_of(field: FieldInfo) -> str:
    """What a key takes, as TOML calls it, with its bounds."""
    return ", ".join([_type(field.annotation), *_bounds(field.metadata)])


def default_of(field: FieldInfo) -> str:
    """The default as TOML has it; "" where there is none, "none" where it is that nothing is said."""
    if field.is_required():
        return ""
    default = field.get_default(call_default_factory=True)
    if default is None:
        return "none"
    if isinstance(default, Settings):
        return "its own"
    written = json.dumps(default, ensure_ascii=False)
    return "a text" if len(written) > LONGEST else written


def inner_tables(field: FieldInfo) -> list[type[Settings]]:
    """The tables that a key holds, but for parts, which a recipe names."""
    found: list[type[Settings]] = []

    def look(kind: Any) -> None:
        if isinstance(kind, type) and issubclass(kind, Settings):
            found.extend([] if issubclass(kind, PARTS) else [kind])
        for argument in get_args(kind):
            look(argument)

    look(field.annotation)
    return found


def _type(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return ", ".join([_type(arguments[0]), *_bounds(arguments[1:])])
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(one) for one in arguments if one is not type(None))
    if origin is tuple:
        return f"list of {_many(arguments[0])}"
    if origin is dict:
        return "table of " + _many(arguments[1]) if arguments[1] is not object else "table"
    if isinstance(kind, type) and issubclass(kind, Settings):
        return "part" if issubclass(kind, Plugin) else "table"
    return {bool: "true or false", int: "integer", float: "number", str: "text"}[kind]


def _many(kind: Any) -> str:
    one = _type(kind)
    return {"text": "texts", "number": "numbers", "part": "parts", "table": "tables"}.get(one, one)


def _bounds(metadata: Any) -> list[str]:
    """``["≥ 1"]``; bounds that only keep out nonsense are not worth a word."""
    written = []
    for bound in _single(metadata):
        if type(bound) in BOUNDS:
            attribute, sign = BOUNDS[type(bound)]
            value = getattr(bound, attribute)
            shown = f"{value:,}" if isinstance(value, int) else f"{value:g}"
            most = MAX_COUNT if isinstance(value, int) else MAX_NUMBER
            written += [f"{sign} {shown}"] if abs(value) < most else []
    return written


def _single(metadata: Any) -> list[Any]:
    """Bounds one by one, where ``Field(ge=0, le=1)`` holds several."""
    return [one for item in metadata for one in (item.metadata if isinstance(item, FieldInfo) else [item])]
