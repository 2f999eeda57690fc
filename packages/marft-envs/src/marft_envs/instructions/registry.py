"""Registry with every instruction type by id, and grading by several instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from marft_envs.instructions import casing, ends, keywords, languages, length, markup, structures
from marft_envs.instructions.kinds import Given, Kind

FAMILIES = (length, keywords, casing, markup, structures, languages, ends)
KINDS: dict[str, Kind] = {kind.id: kind for family in FAMILIES for kind in family.KINDS}
NEEDS_A_PACKAGE = "detectable_format:json_schema"


class Instruction(NamedTuple):
    """Instruction in a task: id and parameters."""

    id: str
    given: Given

    def says(self) -> str:
        """Return the instruction's text."""
        return KINDS[self.id].says(self.given)


def followed(instructions: Sequence[Instruction], text: str, loose: bool = False) -> list[bool]:
    """Check a text by each instruction. An empty text follows no instruction.

    Args:
        instructions: instructions to check.
        text: text to check.
        loose: True to accept a text if any of eight variants follows the instruction. The variants omit the first line,
            the last line or both, each with and without stars (IFEval's loose accuracy).
    """
    texts = [version for version in (versions(text) if loose else [text]) if version.strip()]
    return [any(KINDS[one.id].follows(version, one.given) for version in texts) for one in instructions]


def versions(text: str) -> list[str]:
    """Return the text's variants for IFEval's loose accuracy.

    >>> versions("Sure:\\n*a*")
    ['Sure:\\n*a*', '*a*', 'Sure:', '', 'Sure:\\na', 'a', 'Sure:', '']
    """
    lines = text.split("\n")
    found = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*found, *(version.replace("*", "") for version in found)]


def plain(instructions: Sequence[Instruction]) -> list[dict[str, Any]]:
    """Convert instructions to plain values."""
    return [{"id": one.id, "given": dict(one.given)} for one in instructions]


def of_plain(told: Any) -> list[Instruction]:
    """Create instructions from plain values."""
    return [Instruction(str(one["id"]), one["given"]) for one in told]
