"""Conversations in pieces, and questions about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Kind = Literal["single", "multi", "temporal", "update", "abstention"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a conversation, which is read in one step."""

    date: str
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join((f"{self.date}.", *self.lines))

    def data(self) -> dict[str, Any]:
        """The piece in plain values."""
        return {"date": self.date, "lines": list(self.lines)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Chunk:
        """The piece that plain values are of."""
        return cls(data["date"], tuple(data["lines"]))


@dataclass(frozen=True, slots=True)
class Question:
    """A question that is asked after the conversation.

    Args:
        answer: the right one. None of it counts where the kind is "abstention": there it is right to say that nobody
            mentioned it.
        needs: the facts that it takes, each as the words that a note of it holds.
        listed: whether the answer is several, with commas between them.
    """

    kind: Kind
    text: str
    answer: str
    needs: tuple[tuple[str, ...], ...]
    listed: bool = False

    def data(self) -> dict[str, Any]:
        """The question in plain values."""
        needs = [list(words) for words in self.needs]
        told = {"kind": self.kind, "text": self.text, "answer": self.answer, "needs": needs}
        return {**told, "listed": True} if self.listed else told

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Question:
        """The question that plain values are of."""
        needs = tuple(tuple(words) for words in data["needs"])
        return cls(data["kind"], data["text"], data["answer"], needs, data.get("listed", False))
