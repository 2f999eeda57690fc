"""Grading of answers."""

from __future__ import annotations

from typing import Literal

from marft.agents.answers import stated_answer
from marft.rewards.comparing import contains, token_f1, words_of
from marft_envs.memory.conversations import Question

Grading = Literal["exact", "contains", "f1"]
NOT_MENTIONED = "not mentioned"
ABSTAINS = (NOT_MENTIONED, "no information available")  # phrases for abstention; LoCoMo, task_eval/evaluation.py


def graded(question: Question, text: str, grading: Grading) -> float:
    """Grade an answer, in [0, 1].

    If the conversation does not mention the requested fact, an abstention is right. For other questions an abstention
    is wrong.

    - ``exact`` compares words without case, punctuation and articles.
    - ``contains`` searches for the right answer in the given answer.
    - ``f1`` is LoCoMo's token F1: SQuAD's F1 without the word "and". For a list, it is the mean over the right items of
      the best F1 of a given item (Maharana et al. 2024, ``task_eval/evaluation.py``). Unlike LoCoMo, words are not
      stemmed.
    """
    abstains = any(words in " ".join(text.lower().split()) for words in ABSTAINS)
    if question.kind == "abstention" or abstains:
        return float(question.kind == "abstention" and abstains)
    stated = stated_answer(text)
    if grading == "exact":
        return float(words_of(stated) == words_of(question.answer))
    if grading == "contains":
        return float(contains(" ".join(words_of(stated)), " ".join(words_of(question.answer))))
    if not question.listed:
        return _f1(question.answer, stated)
    parts = [part for part in question.answer.split(",") if part.strip()]
    return sum(max(_f1(part, given) for given in stated.split(",")) for part in parts) / len(parts)


def _f1(right: str, given: str) -> float:
    return token_f1(*(" ".join(word for word in words_of(text) if word != "and") for text in (right, given)))


def holds(text: str, words: tuple[str, ...]) -> bool:
    """Return True if a text contains every word in a fact.

    >>> holds("Ann has a red cat.", ("Ann", "cat", "red")), holds("Ann has a cat.", ("Ann", "cat", "red"))
    (True, False)
    """
    return all(contains(text, word) for word in words)
