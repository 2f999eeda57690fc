"""Strict base class for recipe tables: frozen, no unknown keys, no coercion, with suggestions for typing errors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    Strict,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

MAX_UNKNOWN_KEYS = 20  # maximum unknown keys of a table in a message
MAX_KEY_LENGTH = 200  # maximum length of a word that is compared with others, in characters


def closest_match(word: str, candidates: Iterable[str]) -> str:
    """Return the most similar known word; ``""`` if none is close."""
    if len(word) > MAX_KEY_LENGTH:
        return ""
    return next(iter(get_close_matches(word, sorted(candidates), n=1, cutoff=0.6)), "")


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"``, or the known words if none is close."""
    words = sorted(candidates)
    best = closest_match(word, words)
    if best:
        return f"; did you mean {best!r}?"
    return f"; known: {', '.join(words)}" if words else ""


MAX_COUNT = 10**9
LAX_SCHEMA_TYPES = ("tuple", "set", "frozenset", "lax-or-strict")  # the last one is for paths
MAX_DEPTH = 32  # maximum nesting of tables and lists in a recipe

MIN_NUMBER = 1e-12  # for values that are compared with losses, norms and divergences: smaller ones have no effect
MAX_NUMBER = 1e6  # eleven days in seconds; larger than any reward, norm or price
Bounded = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Positive = Annotated[float, Field(gt=0, le=MAX_NUMBER)]
NonNegative = Annotated[float, Field(ge=0, le=MAX_NUMBER)]
Ratio = Annotated[float, Field(ge=0, le=MAX_COUNT)]  # ratio of probabilities


def _check_magnitude(value: float) -> float:
    """Return a number that is 0 or large enough to have an effect.

    Raises:
        PydanticCustomError: the number is too small.
    """
    if 0 < abs(value) < MIN_NUMBER:
        raise PydanticCustomError("felt", "below {least} it comes to nothing", {"least": f"{MIN_NUMBER:g}"})
    return value


NotTiny = AfterValidator(_check_magnitude)
Weight = Annotated[float, Field(ge=0, le=100), NotTiny]  # weight of a loss or reward term
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
NonNegativeCount = Annotated[int, Field(ge=0, le=MAX_COUNT)]  # 0 has a special meaning
SmallCount = Annotated[int, Field(ge=1, le=10_000)]  # small number of repetitions


def is_too_deep(table: object) -> bool:
    """Return True for a table nested too deeply for a recipe and for Python."""
    level = [table]
    for _ in range(MAX_DEPTH):
        inner = [node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list)]
        level = [value for values in inner for value in values]
    return bool(level)


def check_names(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words after a check for empty and duplicate entries.

    Raises:
        PydanticCustomError: a word is empty or occurs twice.
    """
    for index, word in enumerate(words):
        if not word.strip() or "\0" in word:
            raise PydanticCustomError("name", "must hold no empty name: {word}", {"word": repr(word)})
        if word in words[:index]:
            raise PydanticCustomError("name", "names {word} twice", {"word": repr(word)})
    return words


def _check_serializable(value: object) -> object:
    """Return a value that TOML and JSON can store without change.

    Raises:
        PydanticCustomError: the value, or an inner one, cannot be stored.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_serializable(key)
            _check_serializable(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_serializable(inner)
    elif isinstance(value, str):
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise PydanticCustomError("text", "holds half a character: {text}", {"text": ascii(value)[:100]})
    elif isinstance(value, float) and not math.isfinite(value):
        raise PydanticCustomError("number", "holds {number}, which is no finite number", {"number": value})
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise PydanticCustomError("number", "holds a number that has more than 64 bits")
    elif not isinstance(value, bool | int | float):
        kind = type(value).__name__
        raise PydanticCustomError("plain", "holds a {kind}: only texts, numbers, lists and tables pass", {"kind": kind})
    return value


Names = Annotated[tuple[str, ...], Strict(False), AfterValidator(check_names)]
NonEmptyString = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]
PlainTable = Annotated[
    dict[str, object], AfterValidator(_check_serializable)
]  # table whose values another program reads


def _relax_types(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") in LAX_SCHEMA_TYPES:
            schema.setdefault("strict", False)
        for inner in schema.values():
            _relax_types(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _relax_types(inner)


class Settings(BaseModel):
    """Recipe table. Its fields are the table's keys; all other keys are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept the TOML form for types that TOML lacks: lists for tuples and sets, strings for paths.

        Numbers and strings stay strict.
        """
        schema = handler(source)
        _relax_types(schema)
        return schema

    @classmethod
    def extra_keys(cls) -> Iterable[str]:
        """Return the table's allowed keys without a field."""
        return ()

    @classmethod
    def explain_unknown_key(cls, key: str) -> str:  # noqa: ARG003
        """Return why the table does not take a key that is known elsewhere; "" for keys that nothing knows."""
        return ""

    @classmethod
    def inner_table(cls, key: str) -> type[Settings] | None:  # noqa: ARG003
        """Return the table class behind a key without a field."""
        return None

    @model_validator(mode="wrap")
    @classmethod
    def _reject_unknown_keys(cls, table: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Report unknown keys with suggestions, in addition to all other errors in the table."""
        unknown = [key for key in table if key not in cls.model_fields] if isinstance(table, dict) else []
        extra = {*cls.extra_keys()} if unknown else set[str]()
        unknown = [key for key in unknown if key not in extra]
        if not unknown:
            return handler(table)
        problems = [
            _error_details("unknown_key", f"unknown key {str(key)[:MAX_KEY_LENGTH]!r}{_key_hint(str(key), cls)}")
            for key in unknown[:MAX_UNKNOWN_KEYS]
        ]
        if len(unknown) > MAX_UNKNOWN_KEYS:
            problems.append(_error_details("unknown_key", f"and {len(unknown) - MAX_UNKNOWN_KEYS:,} more unknown keys"))
        refused = set(unknown)
        try:
            handler({key: value for key, value in table.items() if key not in refused})
        except ValidationError as error:
            problems += [_error_details(e["type"], e["msg"], e["loc"], e["input"]) for e in error.errors()]
        raise ValidationError.from_exception_data(cls.__name__, problems)


def _find_inner_keys(cls: type[Settings], key: str, prefix: str = "") -> list[str]:
    """Return locations for a key in inner tables: ``steps`` → ``["training.steps"]``."""
    paths = []
    tables: list[tuple[str, Any]] = [(name, field.annotation) for name, field in cls.model_fields.items()]
    tables += [(name, cls.inner_table(name)) for name in cls.extra_keys()]
    for name, table in tables:
        for kind in get_args(table) if get_origin(table) in (Union, UnionType) else [table]:
            if isinstance(kind, type) and issubclass(kind, Settings):
                paths += [f"{prefix}{name}.{key}"] if key in kind.model_fields else []
                paths += _find_inner_keys(kind, key, f"{prefix}{name}.")
    return paths


@lru_cache(maxsize=1000)  # thousands of tables may have the same wrong key
def _key_hint(key: str, cls: type[Settings]) -> str:
    """Return a hint for an unknown key: its package, the same key in an inner table, or a similar key."""
    if reason := cls.explain_unknown_key(key):
        return f": {reason}"
    paths = _find_inner_keys(cls, key)
    if paths:
        return f"; did you mean {' or '.join(map(repr, paths))}?"
    return did_you_mean(key, [*cls.model_fields, *cls.extra_keys()])


def _error_details(
    kind: str, message: str, location: tuple[int | str, ...] = (), value: object = None
) -> InitErrorDetails:
    error = PydanticCustomError(kind, "{message}", {"message": message})
    return InitErrorDetails(type=error, loc=location, input={} if value is None else value)
