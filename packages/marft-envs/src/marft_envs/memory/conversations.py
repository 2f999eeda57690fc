"""Conversations in chunks, questions about them, and the grading of answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from marft.agents.answers import extract_answer
from marft.rewards.text_match import contains, normalize_words, token_f1

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


Grading = Literal["exact", "contains", "f1"]
NOT_MENTIONED = "not mentioned"
ABSTENTION_PHRASES = (
    NOT_MENTIONED,
    "no information available",
)  # phrases for abstention; LoCoMo, task_eval/evaluation.py


def grade_answer(question: Question, text: str, grading: Grading) -> float:
    """Grade an answer, in [0, 1].

    If the conversation does not mention the requested fact, an abstention is right. For other questions an abstention
    is wrong.

    - ``exact`` compares words without case, punctuation and articles.
    - ``contains`` searches for the right answer in the given answer.
    - ``f1`` is LoCoMo's token F1: SQuAD's F1 without the word "and". For a list, it is the mean over the right items of
      the best F1 of a given item (Maharana et al. 2024, ``task_eval/evaluation.py``). Unlike LoCoMo, words are not
      stemmed.
    """
    abstains = any(words in " ".join(text.lower().split()) for words in ABSTENTION_PHRASES)
    if question.kind == "abstention" or abstains:
        return float(question.kind == "abstention" and abstains)
    answer_text = extract_answer(text)
    if grading == "exact":
        return float(normalize_words(answer_text) == normalize_words(question.answer))
    if grading == "contains":
        return float(contains(" ".join(normalize_words(answer_text)), " ".join(normalize_words(question.answer))))
    if not question.listed:
        return _f1(question.answer, answer_text)
    parts = [part for part in question.answer.split(",") if part.strip()]
    return sum(max(_f1(part, answer_item) for answer_item in answer_text.split(",")) for part in parts) / len(parts)


def _f1(expected: str, answer: str) -> float:
    return token_f1(*(" ".join(word for word in normalize_words(text) if word != "and") for text in (expected, answer)))


def contains_fact(text: str, words: tuple[str, ...]) -> bool:
    """Return True if a text contains every word in a fact.

    >>> [contains_fact(text, ("Ann", "cat", "red")) for text in ("Ann has a red cat.", "Ann has a cat.")]
    [True, False]
    """
    return all(contains(text, word) for word in words)
