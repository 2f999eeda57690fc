"""All kinds of instructions by their ids, and how a text is graded by several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from marft_envs.instructions import casing, ends, keywords, languages, length, markup, structures
from marft_envs.instructions.kinds import Given, Kind

FAMILIES = (length, keywords, casing, markup, structures, languages, ends)
KINDS: dict[str, Kind] = {kind.id: kind for family in FAMILIES for kind in family.KINDS}
NEEDS_A_PACKAGE = "detectable_format:json_schema"


class Instruction(NamedTuple):
    """One instruction of a task: the id of its kind, and its parameters."""

    id: str
    given: Given

    def says(self) -> str:
        return KINDS[self.id].says(self.given)


def followed(instructions: Sequence[Instruction], text: str, loose: bool = False) -> list[bool]:
    """Which instructions a text follows. An empty text follows none.

    Args:
        loose: whether it is enough that one of eight versions of the text does: without its first line, its last, or
            both, each with and without stars (IFEval's loose accuracy).
    """
    texts = [version for version in (versions(text) if loose else [text]) if version.strip()]
    return [any(KINDS[one.id].follows(version, one.given) for version in texts) for one in instructions]


def versions(text: str) -> list[str]:
    """A text and what IFEval's loose accuracy reads in its place.

    >>> versions("Sure:\\n*a*")
    ['Sure:\\n*a*', '*a*', 'Sure:', '', 'Sure:\\na', 'a', 'Sure:', '']
    """
    lines = text.split("\n")
    found = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*found, *(version.replace("*", "") for version in found)]


def plain(instructions: Sequence[Instruction]) -> list[dict[str, Any]]:
    """Instructions as plain values."""
    return [{"id": one.id, "given": dict(one.given)} for one in instructions]


def of_plain(told: Any) -> list[Instruction]:
    """Instructions of plain values."""
    return [Instruction(str(one["id"]), one["given"]) for one in told]
