"""The strict base of every table of a recipe: frozen, no unknown keys, no coercion, "did you mean"."""

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

MOST_UNKNOWN = 20  # unknown keys of a table that are named
LONGEST_KEY = 200  # characters of a word that others are compared with


def closest(word: str, known: Iterable[str]) -> str:
    """The known word that is spelled most alike; ``""`` where none is close."""
    if len(word) > LONGEST_KEY:
        return ""
    return next(iter(get_close_matches(word, sorted(known), n=1, cutoff=0.6)), "")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, or the known words when none is close."""
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
)  # the last is of paths
DEEPEST = 32  # tables and lists inside each other, in all of a recipe

SMALLEST_NUMBER = 1e-12  # of what is compared with losses, norms and divergences: below it comes to nothing
LARGEST_NUMBER = 1e6  # seconds are eleven days, and more than any reward, norm or price
Bounded = Annotated[float, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Positive = Annotated[float, Field(gt=0, le=LARGEST_NUMBER)]
NotNegative = Annotated[float, Field(ge=0, le=LARGEST_NUMBER)]
Ratio = Annotated[float, Field(ge=0, le=LARGEST)]  # of probabilities


def _felt(value: float) -> float:
    """
    Raises:
        PydanticCustomError: a number is not 0, and too small to be felt.
    """
    if 0 < abs(value) < SMALLEST_NUMBER:
        raise PydanticCustomError("felt", "below {least} it comes to nothing", {"least": f"{SMALLEST_NUMBER:g}"})
    return value


Felt = AfterValidator(_felt)
Weight = Annotated[float, Field(ge=0, le=100), Felt]  # of a term of a loss or of a reward
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
CountOrNone = Annotated[int, Field(ge=0, le=LARGEST)]  # 0 means something of its own
Few = Annotated[int, Field(ge=1, le=10_000)]  # how often something is done again


def too_deep(table: object) -> bool:
    """Whether tables and lists lie inside each other deeper than any recipe needs, and Python goes."""
    level = [table]
    for _ in range(DEEPEST):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [value for values in inner for value in values]
    return bool(level)


def are_names(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words, where none is empty and none comes twice."""
    for index, word in enumerate(words):
        if not word.strip() or "\0" in word:
            raise PydanticCustomError("name", "must hold no empty name: {word}", {"word": repr(word)})
        if word in words[:index]:
            raise PydanticCustomError("name", "names {word} twice", {"word": repr(word)})
    return words


def _is_plain(value: object) -> object:
    """The value, where TOML and JSON can hold it and give it back the same."""
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
Plain = Annotated[dict[str, object], AfterValidator(_is_plain)]  # of values that somebody else will read


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
    """A table of a recipe. Its fields are the table's keys, and nothing else is accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, hide_input_in_errors=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """What TOML has no kind of its own for is read from what it is written as: a tuple or a set from a list, a path
        from a text. Numbers and texts stay what they are."""
        schema = handler(source)
        _read_as_written(schema)
        return schema

    @classmethod
    def other_keys(cls) -> Iterable[str]:
        """Return the keys that the table takes beside its fields."""
        return ()

    @classmethod
    def inner_table(cls, key: str) -> type[Settings] | None:  # noqa: ARG003
        """Return the class of the table behind one of the other keys."""
        return None

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_unknown_keys(cls, table: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Report unknown keys with a suggestion, beside whatever else is wrong with the table."""
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
        try:
            handler({key: value for key, value in table.items() if key not in unknown})
        except ValidationError as error:
            problems += [_problem(e["type"], e["msg"], e["loc"], e["input"]) for e in error.errors()]
        raise ValidationError.from_exception_data(cls.__name__, problems)


def _deeper(cls: type[Settings], key: str, prefix: str = "") -> list[str]:
    """Where a key is known in the tables inside a table: ``steps`` → ``["training.steps"]``."""
    found = []
    tables: list[tuple[str, Any]] = [(name, field.annotation) for name, field in cls.model_fields.items()]
    tables += [(name, cls.inner_table(name)) for name in cls.other_keys()]
    for name, table in tables:
        for kind in get_args(table) if get_origin(table) in (Union, UnionType) else [table]:
            if isinstance(kind, type) and issubclass(kind, Settings):
                found += [f"{prefix}{name}.{key}"] if key in kind.model_fields else []
                found += _deeper(kind, key, f"{prefix}{name}.")
    return found


@lru_cache(maxsize=1000)  # thousands of tables may hold the same wrong key
def _meant(key: str, cls: type[Settings]) -> str:
    """What may have been meant by a key that is not known: itself, in a table further in, or one spelled alike."""
    deeper = _deeper(cls, key)
    if deeper:
        return f"; did you mean {' or '.join(map(repr, deeper))}?"
    return did_you_mean(key, [*cls.model_fields, *cls.other_keys()])


def _problem(kind: str, message: str, where: tuple[int | str, ...] = (), given: object = None) -> InitErrorDetails:
    error = PydanticCustomError(kind, "{message}", {"message": message})
    return InitErrorDetails(type=error, loc=where, input={} if given is None else given)
