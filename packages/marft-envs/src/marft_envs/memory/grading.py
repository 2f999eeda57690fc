"""What an answer is worth."""

from __future__ import annotations

from typing import Literal

from marft.agents.answers import stated_answer
from marft.rewards.comparing import contains, token_f1, words_of
from marft_envs.memory.conversations import Question

Grading = Literal["exact", "contains", "f1"]
NOT_MENTIONED = "not mentioned"
ABSTAINS = (NOT_MENTIONED, "no information available")  # LoCoMo, task_eval/evaluation.py


def graded(question: Question, text: str, grading: Grading) -> float:
    """What an answer is worth, from 0 to 1. Where nobody mentioned what is asked for, saying so is right, and
    elsewhere nothing that says so is.

    ``exact`` compares words without case, punctuation and articles; ``contains`` looks for the right answer among
    them; ``f1`` is LoCoMo's, which is SQuAD's without the word "and"; where the answer is a list, the mean over its
    parts of what the best part of the given one is worth (Maharana et al. 2024, ``task_eval/evaluation.py``; we do not
    stem words).
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
    """Whether a text says a fact: it holds all its words.

    >>> holds("Ann has a red cat.", ("Ann", "cat", "red")), holds("Ann has a cat.", ("Ann", "cat", "red"))
    (True, False)
    """
    return all(contains(text, word) for word in words)
