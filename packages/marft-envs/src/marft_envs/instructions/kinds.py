"""Instruction types: text, checker and parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

Given = Mapping[str, Any]  # parameters under IFEval's names, as plain values
Relation = Literal["at least", "less than", "exactly"]
LISTS, TABLES = ("keywords", "forbidden_words"), ("schema",)  # parameters that are not texts
RELATIONS = ("at least", "less than", "exactly")


@dataclass(frozen=True)
class Topic:
    """Topic with related words."""

    name: str
    words: tuple[str, ...]

    @property
    def request(self) -> str:
        """Return the basic request, without instructions."""
        return f"Write about {self.name}."


@dataclass(frozen=True)
class Kind:
    """Type for an instruction.

    A text gets at most one instruction from a ``group``. An instruction with ``alone`` is never combined with another.
    """

    id: str
    says: Callable[[Given], str]
    follows: Callable[[str, Given], bool]  # checker for a nonempty text
    draw: Callable[[Random, Topic], dict[str, Any]]
    keys: tuple[str, ...] = ()  # required parameters
    group: str = ""
    alone: bool = False
    wrong: Callable[[Given], str] = lambda _: ""  # further validation of parameters; returns the error, or ""

    def problem(self, given: Given) -> str:
        """Return the error in the parameters; "" if valid."""
        missing = [key for key in self.keys if given.get(key) is None]
        if missing:
            return f"lacks {', '.join(missing)}"
        for key, value in given.items():
            if key.endswith("relation") and value not in RELATIONS:
                return f"{key} is {value!r}, and not one of {', '.join(RELATIONS)}"
            counted = key.startswith(("num_", "nth_")) or key.endswith("frequency")
            if counted and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**6):
                return f"{key} is {value!r}, and no count"
            if not counted and key in self.keys and key not in TABLES and not _is_text(value, key):
                return f"{key} is {value!r:.80}, and no {'list of texts' if key in LISTS else 'text'}"
        return self.wrong(given)


def _is_text(value: object, key: str) -> bool:
    """Return True for a nonblank text, or for a nonempty list with nonblank texts."""
    if key in LISTS:
        return isinstance(value, list) and bool(value) and all(_is_text(one, "") for one in value)
    return isinstance(value, str) and bool(value.strip())


def nothing(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    """Draw no parameters."""
    return {}


def counted(count: int, relation: str, wanted: int) -> bool:
    """Return True if a count satisfies a relation.

    >>> counted(3, "at least", 3), counted(3, "less than", 3), counted(3, "exactly", 4)
    (True, False, False)
    """
    if relation == "exactly":
        return count == wanted
    return count >= wanted if relation == "at least" else count < wanted
