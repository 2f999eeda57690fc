"""Instruction types: text, checker and parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

Parameters = Mapping[str, Any]  # parameters under IFEval's names, as plain values
Relation = Literal["at least", "less than", "exactly"]
LIST_PARAMETERS, TABLE_PARAMETERS = ("keywords", "forbidden_words"), ("schema",)  # parameters that are not texts
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
class InstructionKind:
    """Type for an instruction.

    A text gets at most one instruction from a ``group``. An instruction with ``is_exclusive`` is never combined with
    another.
    """

    id: str
    format_text: Callable[[Parameters], str]
    check_text: Callable[[str, Parameters], bool]  # checker for a nonempty text
    draw_parameters: Callable[[Random, Topic], dict[str, Any]]
    required_keys: tuple[str, ...] = ()  # required parameters
    group: str = ""
    is_exclusive: bool = False
    find_error: Callable[[Parameters], str] = lambda _: ""  # further validation of parameters; returns the error, or ""

    def parameter_error(self, parameters: Parameters) -> str:
        """Return the error in the parameters; "" if valid."""
        missing = [key for key in self.required_keys if parameters.get(key) is None]
        if missing:
            return f"lacks {', '.join(missing)}"
        for key, value in parameters.items():
            if key.endswith("relation") and value not in RELATIONS:
                return f"{key} is {value!r}, and not one of {', '.join(RELATIONS)}"
            is_count = key.startswith(("num_", "nth_")) or key.endswith("frequency")
            if is_count and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**6):
                return f"{key} is {value!r}, and no count"
            if not is_count and key in self.required_keys and key not in TABLE_PARAMETERS and not _is_text(value, key):
                return f"{key} is {value!r:.80}, and no {'list of texts' if key in LIST_PARAMETERS else 'text'}"
        return self.find_error(parameters)


def _is_text(value: object, key: str) -> bool:
    """Return True for a nonblank text, or for a nonempty list with nonblank texts."""
    if key in LIST_PARAMETERS:
        return isinstance(value, list) and bool(value) and all(_is_text(text_item, "") for text_item in value)
    return isinstance(value, str) and bool(value.strip())


def no_parameters(random: Random, topic: Topic) -> dict[str, Any]:  # noqa: ARG001
    """Draw no parameters."""
    return {}


def satisfies_relation(count: int, relation: str, target: int) -> bool:
    """Return True if a count satisfies a relation.

    >>> satisfies_relation(3, "at least", 3), satisfies_relation(3, "less than", 3), satisfies_relation(3, "exactly", 4)
    (True, False, False)
    """
    if relation == "exactly":
        return count == target
    return count >= target if relation == "at least" else count < target
