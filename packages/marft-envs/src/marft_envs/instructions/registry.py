"""Registry with every instruction type by id, and grading by several instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from marft_envs.instructions import casing, keywords, languages, length, markup, start_end, structures
from marft_envs.instructions.kinds import InstructionKind, Parameters

FAMILIES = (length, keywords, casing, markup, structures, languages, start_end)
KINDS: dict[str, InstructionKind] = {kind.id: kind for family in FAMILIES for kind in family.KINDS}
JSON_SCHEMA_KIND = "detectable_format:json_schema"


class Instruction(NamedTuple):
    """Instruction in a task: id and parameters."""

    id: str
    parameters: Parameters

    def format_text(self) -> str:
        """Return the instruction's text."""
        return KINDS[self.id].format_text(self.parameters)


def check_instructions(instructions: Sequence[Instruction], text: str, loose: bool = False) -> list[bool]:
    """Check a text by each instruction. An empty text follows no instruction.

    Args:
        instructions: instructions to check.
        text: text to check.
        loose: True to accept a text if any of eight variants follows the instruction. The variants omit the first line,
            the last line or both, each with and without stars (IFEval's loose accuracy).
    """
    texts = [version for version in (loose_variants(text) if loose else [text]) if version.strip()]
    return [
        any(KINDS[instruction.id].check_text(version, instruction.parameters) for version in texts)
        for instruction in instructions
    ]


def loose_variants(text: str) -> list[str]:
    """Return the text's variants for IFEval's loose accuracy.

    >>> loose_variants("Sure:\\n*a*")
    ['Sure:\\n*a*', '*a*', 'Sure:', '', 'Sure:\\na', 'a', 'Sure:', '']
    """
    lines = text.split("\n")
    line_variants = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*line_variants, *(version.replace("*", "") for version in line_variants)]


def to_dicts(instructions: Sequence[Instruction]) -> list[dict[str, Any]]:
    """Convert instructions to plain values."""
    return [{"id": instruction.id, "given": dict(instruction.parameters)} for instruction in instructions]


def from_dicts(rows: Any) -> list[Instruction]:
    """Create instructions from plain values."""
    return [Instruction(str(row["id"]), row["given"]) for row in rows]
