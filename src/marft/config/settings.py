"""The strict base of every table of a recipe: frozen, no unknown keys, no coercion, "did you mean"."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError


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

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, table: Any) -> Any:
        if isinstance(table, dict):
            for key in table:
                if key not in cls.model_fields:
                    hint = did_you_mean(str(key), cls.model_fields)
                    raise PydanticCustomError("unknown_key", "unknown key {key}{hint}", {"key": repr(key), "hint": hint})
        return table
