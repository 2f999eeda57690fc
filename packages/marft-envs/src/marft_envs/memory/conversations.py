"""Conversations in chunks, and questions about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Kind = Literal["single", "multi", "temporal", "update", "abstention"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Chunk from a conversation, read in a single step."""

    date: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the date and the lines as text."""
        return "\n".join((f"{self.date}.", *self.lines))

    def to_dict(self) -> dict[str, Any]:
        """Convert the chunk to plain values."""
        return {"date": self.date, "lines": list(self.lines)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Chunk:
        """Create a chunk from plain values."""
        return cls(data["date"], tuple(data["lines"]))


@dataclass(frozen=True, slots=True)
class Question:
    """Question after the conversation.

    Args:
        kind: kind of the question.
        text: text of the question.
        answer: right answer. It is ignored for the kind "abstention": the right answer is then that the conversation
            does not mention the fact.
        needs: necessary facts, each as the words that its note contains.
        listed: True if the answer is a comma-separated list.
    """

    kind: Kind
    text: str
    answer: str
    needs: tuple[tuple[str, ...], ...]
    listed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Convert the question to plain values."""
        needs = [list(words) for words in self.needs]
        fields = {"kind": self.kind, "text": self.text, "answer": self.answer, "needs": needs}
        return {**fields, "listed": True} if self.listed else fields

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Question:
        """Create a question from plain values."""
        needs = tuple(tuple(words) for words in data["needs"])
        return cls(data["kind"], data["text"], data["answer"], needs, data.get("listed", False))
