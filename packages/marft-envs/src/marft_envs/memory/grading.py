"""Grading of answers."""

from __future__ import annotations

from typing import Literal

from marft.agents.answers import extract_answer
from marft.rewards.text_match import contains, normalize_words, token_f1
from marft_envs.memory.conversations import Question

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
    stated_text = extract_answer(text)
    if grading == "exact":
        return float(normalize_words(stated_text) == normalize_words(question.answer))
    if grading == "contains":
        return float(contains(" ".join(normalize_words(stated_text)), " ".join(normalize_words(question.answer))))
    if not question.listed:
        return _f1(question.answer, stated_text)
    parts = [part for part in question.answer.split(",") if part.strip()]
    return sum(max(_f1(part, answer_item) for answer_item in stated_text.split(",")) for part in parts) / len(parts)


def _f1(expected: str, answer: str) -> float:
    return token_f1(*(" ".join(word for word in normalize_words(text) if word != "and") for text in (expected, answer)))


def contains_fact(text: str, words: tuple[str, ...]) -> bool:
    """Return True if a text contains every word in a fact.

    >>> [contains_fact(text, ("Ann", "cat", "red")) for text in ("Ann has a red cat.", "Ann has a cat.")]
    [True, False]
    """
    return all(contains(text, word) for word in words)
