"""Disjoint splits by content: a question's own text determines its split permanently.

Two questions with the same words are in the same split, whatever their seed, index or file. A generator that
repeats itself therefore cannot leak a held-out question into training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal

from marft.agents.environment import Split

Part = Literal["train", "validation", "test", "demonstrations"]

HELD_OUT = {"validation": (0, 10), "test": (10, 20)}  # percentiles of all questions


def split_of(question: str) -> Split:
    """Return a question's split: 10 % validation, 10 % test, the rest training. Case and spacing are ignored.

    >>> split_of("What is  2 + 3?") == split_of("what is 2 + 3?")
    True
    """
    bucket = _number_of(question) % 100
    for split, (low, high) in HELD_OUT.items():
        if low <= bucket < high:
            return "validation" if split == "validation" else "test"
    return "train"


def part_of(content: str) -> Part:
    """Return a generated task's split, as :func:`split_of`, with a fifth reserved for demonstrations.

    >>> part_of("maze 17") == part_of("Maze  17")
    True
    """
    split = split_of(content)
    return "demonstrations" if split == "train" and _number_of(content) // 100 % 4 == 0 else split


def share_of(question: str, validation: float, test: float) -> Split:
    """Return a question's split for given fractions of validation and test, each from 0 to 1.

    >>> share_of("What is 2 + 3?", validation=0.0, test=1.0)
    'test'
    """
    point = _number_of(question) / 2**64
    if point < validation:
        return "validation"
    return "test" if point < validation + test else "train"


def dealt(questions: Iterable[str]) -> dict[str, Split]:
    """Return the splits for a small set of questions: a fifth test, a fifth validation, the rest training.

    With few questions, random assignment could leave a split empty. Here, the questions' own texts determine only
    the order.

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
    """Return a question without case and spacing, the form that determines its split.

    >>> bare("What is  2 + 3?")
    'what is 2 + 3?'
    """
    return " ".join(question.split()).casefold()


def _number_of(question: str) -> int:
    plain = bare(question).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(plain, digest_size=8).digest(), "big")
