"""Disjoint splits by content: a question's own text decides, once and for all, which split it belongs to.

Two questions with the same words are in the same split whatever seed, index or file they came from, so no generator
that repeats itself can leak a held-out question into training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal

from marft.agents.environment import Split

Part = Literal["train", "validation", "test", "demonstrations"]

HELD_OUT = {"validation": (0, 10), "test": (10, 20)}  # percent of all questions


def split_of(question: str) -> Split:
    """The split of a question: 10 % validation, 10 % test, the rest training. Case and spacing do not count.

    >>> split_of("What is  2 + 3?") == split_of("what is 2 + 3?")
    True
    """
    bucket = _number_of(question) % 100
    for split, (low, high) in HELD_OUT.items():
        if low <= bucket < high:
            return "validation" if split == "validation" else "test"
    return "train"


def part_of(content: str) -> Part:
    """The part of a task that was drawn: as :func:`split_of` has it, but for a fifth that is for demonstrations alone.

    >>> part_of("maze 17") == part_of("Maze  17")
    True
    """
    split = split_of(content)
    return "demonstrations" if split == "train" and _number_of(content) // 100 % 4 == 0 else split


def share_of(question: str, validation: float, test: float) -> Split:
    """The split of a question where validation and test are given shares of all, from 0 to 1.

    >>> share_of("What is 2 + 3?", validation=0.0, test=1.0)
    'test'
    """
    point = _number_of(question) / 2**64
    if point < validation:
        return "validation"
    return "test" if point < validation + test else "train"


def dealt(questions: Iterable[str]) -> dict[str, Split]:
    """The splits of a few questions, of which no part could be left to chance: a fifth is the test, a fifth validation,
    in an order that their own texts decide.

    >>> sorted(dealt(["a", "b", "c", "d", "e"]).values())
    ['test', 'train', 'train', 'train', 'validation']
    """
    ordered = sorted(set(questions), key=lambda question: (_number_of(question), question))
    fifth = -(-len(ordered) // 5)
    shares: tuple[tuple[Split, Sequence[str]], ...] = (
        ("test", ordered[:fifth]), ("validation", ordered[fifth : 2 * fifth]), ("train", ordered[2 * fifth :]),
    )  # fmt: skip
    return {question: split for split, part in shares for question in part}


def bare(question: str) -> str:
    """A question without case and spacing: what decides which split it belongs to.

    >>> bare("What is  2 + 3?")
    'what is 2 + 3?'
    """
    return " ".join(question.split()).casefold()


def _number_of(question: str) -> int:
    plain = bare(question).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(plain, digest_size=8).digest(), "big")
