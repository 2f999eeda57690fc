"""What an instruction is: words that say it, and a function that says whether a text follows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

Given = Mapping[str, Any]  # an instruction's parameters, under IFEval's names; plain values
Relation = Literal["at least", "less than", "exactly"]
LISTS, TABLES = ("keywords", "forbidden_words"), ("schema",)  # parameters that are no texts
RELATIONS = ("at least", "less than", "exactly")


@dataclass(frozen=True)
class Topic:
    """What a text is about, and words that belong to it."""

    name: str
    words: tuple[str, ...]

    @property
    def request(self) -> str:
        """What is asked for, whatever instructions follow."""
        return f"Write about {self.name}."


@dataclass(frozen=True)
class Kind:
    """One kind of instruction. No two of a ``group`` are drawn for one text, nor one that is ``alone`` with another."""

    id: str
    says: Callable[[Given], str]
    follows: Callable[[str, Given], bool]  # a text that is not empty
    draw: Callable[[Random, Topic], dict[str, Any]]
    keys: tuple[str, ...] = ()  # parameters that it cannot do without
    group: str = ""
    alone: bool = False
    wrong: Callable[[Given], str] = lambda _: ""  # what else is wrong with parameters, in words

    def problem(self, given: Given) -> str:
        """What is wrong with parameters; "" where nothing is."""
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
    """Whether a parameter is a text that says something, or a list of some."""
    if key in LISTS:
        return isinstance(value, list) and bool(value) and all(_is_text(one, "") for one in value)
    return isinstance(value, str) and bool(value.strip())


def nothing(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    """Of instructions without parameters."""
    return {}


def counted(count: int, relation: str, wanted: int) -> bool:
    """Whether a count stands in a relation to another one.

    >>> counted(3, "at least", 3), counted(3, "less than", 3), counted(3, "exactly", 4)
    (True, False, False)
    """
    if relation == "exactly":
        return count == wanted
    return count >= wanted if relation == "at least" else count < wanted
