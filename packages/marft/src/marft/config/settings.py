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

MOST_UNKNOWN = 20  # maximum unknown keys of a table in a message
LONGEST_KEY = 200  # maximum length of a word that is compared with others, in characters


def closest(word: str, known: Iterable[str]) -> str:
    """Return the most similar known word; ``""`` if none is close."""
    if len(word) > LONGEST_KEY:
        return ""
    return next(iter(get_close_matches(word, sorted(known), n=1, cutoff=0.6)), "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"``, or the known words if none is close."""
    words = sorted(known)
    close = closest(word, words)
    if close:
        return f"; did you mean {close!r}?"
    return f"; known: {', '.join(words)}" if words else ""


LARGEST = 10**9
WRITTEN_OTHERWISE = (
    "tuple",
    "set",
    "frozenset",
    "lax-or-strict",
)  # the last one is for paths
DEEPEST = 32  # maximum nesting of tables and lists in a recipe

SMALLEST_NUMBER = 1e-12  # for values that are compared with losses, norms and divergences: smaller ones have no effect
LARGEST_NUMBER = 1e6  # eleven days in seconds; larger than any reward, norm or price
Bounded = Annotated[float, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Positive = Annotated[float, Field(gt=0, le=LARGEST_NUMBER)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST_NUMBER)]
Ratio = Annotated[float, Field(ge=0, le=LARGEST)]  # ratio of probabilities


def _felt(value: float) -> float:
    """Return a number that is 0 or large enough to have an effect.

    Raises:
        PydanticCustomError: the number is too small.
    """
    if 0 < abs(value) < SMALLEST_NUMBER:
        raise PydanticCustomError("felt", "below {least} it comes to nothing", {"least": f"{SMALLEST_NUMBER:g}"})
    return value


Felt = AfterValidator(_felt)
Weight = Annotated[float, Field(ge=0, le=100), Felt]  # weight of a loss or reward term
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
CountOrNone = Annotated[int, Field(ge=0, le=LARGEST)]  # 0 has a special meaning
Few = Annotated[int, Field(ge=1, le=10_000)]  # small number of repetitions


def too_deep(table: object) -> bool:
    """Return True for a table nested too deeply for a recipe and for Python."""
    level = [table]
    for _ in range(DEEPEST):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [value for values in inner for value in values]
    return bool(level)


def are_names(words: tuple[str, ...]) -> tuple[str, ...]:
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


def _is_plain(value: object) -> object:
    """Return a value that TOML and JSON can store without change.

    Raises:
        PydanticCustomError: the value, or an inner one, cannot be stored.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            _is_plain(key)
            _is_plain(inner)
    elif isinstance(value, list):
        for inner in value:
            _is_plain(inner)
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


Names = Annotated[tuple[str, ...], Strict(False), AfterValidator(are_names)]
Filled = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]
Plain = Annotated[dict[str, object], AfterValidator(_is_plain)]  # table whose values another program reads


def _read_as_written(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") in WRITTEN_OTHERWISE:
            schema.setdefault("strict", False)
        for inner in schema.values():
            _read_as_written(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _read_as_written(inner)


class Settings(BaseModel):
    """Recipe table. Its fields are the table's keys; all other keys are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Accept the TOML form for types that TOML lacks: lists for tuples and sets, strings for paths.

        Numbers and strings stay strict.
        """
        schema = handler(source)
        _read_as_written(schema)
        return schema

    @classmethod
    def other_keys(cls) -> Iterable[str]:
        """Return the table's allowed keys without a field."""
        return ()

    @classmethod
    def explain_unknown(cls, key: str) -> str:  # noqa: ARG003
        """Return why the table does not take a key that is known elsewhere; "" for keys that nothing knows."""
        return ""

    @classmethod
    def inner_table(cls, key: str) -> type[Settings] | None:  # noqa: ARG003
        """Return the table class behind a key without a field."""
        return None

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_unknown_keys(cls, table: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Report unknown keys with suggestions, in addition to all other errors in the table."""
        unknown = [key for key in table if key not in cls.model_fields] if isinstance(table, dict) else []
        others = {*cls.other_keys()} if unknown else set[str]()
        unknown = [key for key in unknown if key not in others]
        if not unknown:
            return handler(table)
        problems = [
            _problem("unknown_key", f"unknown key {str(key)[:LONGEST_KEY]!r}{_meant(str(key), cls)}")
            for key in unknown[:MOST_UNKNOWN]
        ]
        if len(unknown) > MOST_UNKNOWN:
            problems.append(_problem("unknown_key", f"and {len(unknown) - MOST_UNKNOWN:,} more unknown keys"))
        refused = set(unknown)
        try:
            handler({key: value for key, value in table.items() if key not in refused})
        except ValidationError as error:
            problems += [_problem(e["type"], e["msg"], e["loc"], e["input"]) for e in error.errors()]
        raise ValidationError.from_exception_data(cls.__name__, problems)


def _deeper(cls: type[Settings], key: str, prefix: str = "") -> list[str]:
    """Return locations for a key in inner tables: ``steps`` → ``["training.steps"]``."""
    found = []
    tables: list[tuple[str, Any]] = [(name, field.annotation) for name, field in cls.model_fields.items()]
    tables += [(name, cls.inner_table(name)) for name in cls.other_keys()]
    for name, table in tables:
        for kind in get_args(table) if get_origin(table) in (Union, UnionType) else [table]:
            if isinstance(kind, type) and issubclass(kind, Settings):
                found += [f"{prefix}{name}.{key}"] if key in kind.model_fields else []
                found += _deeper(kind, key, f"{prefix}{name}.")
    return found


@lru_cache(maxsize=1000)  # thousands of tables may have the same wrong key
def _meant(key: str, cls: type[Settings]) -> str:
    """Return a hint for an unknown key: its package, the same key in an inner table, or a similar key."""
    if why := cls.explain_unknown(key):
        return f": {why}"
    deeper = _deeper(cls, key)
    if deeper:
        return f"; did you mean {' or '.join(map(repr, deeper))}?"
    return did_you_mean(key, [*cls.model_fields, *cls.other_keys()])


def _problem(kind: str, message: str, where: tuple[int | str, ...] = (), given: object = None) -> InitErrorDetails:
    error = PydanticCustomError(kind, "{message}", {"message": message})
    return InitErrorDetails(type=error, loc=where, input={} if given is None else given)
