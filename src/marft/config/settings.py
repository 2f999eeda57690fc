"""The strict base of every table of a recipe: frozen, no unknown keys, no coercion, "did you mean"."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, or the known words when none is close."""
    words = sorted(known)
    close = get_close_matches(word, words, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(words)}" if words else ""


class Settings(BaseModel):
    """A table of a recipe. Its fields are the table's keys, and nothing else is accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_unknown_keys(cls, table: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Report unknown keys with a suggestion, beside whatever else is wrong with the table."""
        unknown = [key for key in table if key not in cls.model_fields] if isinstance(table, dict) else []
        if not unknown:
            return handler(table)
        problems = [
            _problem("unknown_key", f"unknown key {key!r}{did_you_mean(str(key), cls.model_fields)}") for key in unknown
        ]
        try:
            handler({key: value for key, value in table.items() if key in cls.model_fields})
        except ValidationError as error:
            problems += [_problem(e["type"], e["msg"], e["loc"], e["input"]) for e in error.errors()]
        raise ValidationError.from_exception_data(cls.__name__, problems)


def _problem(kind: str, message: str, where: tuple[int | str, ...] = (), given: Any = None) -> InitErrorDetails:
    error = PydanticCustomError(kind, "{message}", {"message": message})
    return InitErrorDetails(type=error, loc=where, input={} if given is None else given)
