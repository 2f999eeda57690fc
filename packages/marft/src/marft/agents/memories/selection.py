"""Text selection within a token budget. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from marft.agents.memories.interface import Counter

_TOKENS = re.compile(r"\w+|[^\w\s]")
_WORDS = re.compile(r"\w+")


class Placed(NamedTuple):
    """Text with its number in the order of writing."""

    number: int
    text: str


def words_and_marks(text: str) -> int:
    """Return the number of words and punctuation marks in a text, a token count without a tokenizer.

    >>> words_and_marks("Ann's cat is red.")
    7
    """
    return len(_TOKENS.findall(text))


def words_of(text: str) -> frozenset[str]:
    """Return the words in a text, case-folded.

    >>> sorted(words_of("Ann's cat"))
    ['ann', 'cat', 's']
    """
    return frozenset(_WORDS.findall(text.casefold()))


def fitting(ranked: Sequence[Placed], budget: int, count: Counter, most: int = 0) -> tuple[str, ...]:
    """Return the best texts that fit within a token budget, in the order of writing.

    Texts are tried from best to worst. A text that does not fit is skipped. If none fits, the best text is
    truncated.

    Args:
        ranked: texts, the best first.
        budget: maximum tokens of all texts together, one per line.
        most: maximum number of texts; 0 means no limit.

    >>> texts = [Placed(2, "Bea is a cook."), Placed(1, "Ann lives in Rome, near the river."), Placed(0, "Ann laughs.")]
    >>> fitting(texts, 9, words_and_marks)
    ('Ann laughs.', 'Bea is a cook.')
    """
    chosen, left, apart = list[Placed](), budget, count("\n")
    for one in ranked:
        if left <= 0 or (most and len(chosen) == most):
            break
        needed = count(one.text) + (apart if chosen else 0)
        if needed <= left:
            chosen.append(one)
            left -= needed
    while chosen and count(_joined(chosen)) > budget:  # a tokenizer may split texts differently where they meet
        chosen.pop()
    if not chosen and ranked:
        shortened = cut(ranked[0].text, budget, count)
        return (shortened,) if shortened else ()
    return tuple(one.text for one in sorted(chosen))


def cut(text: str, budget: int, count: Counter) -> str:
    """Truncate a text to a token budget, keeping its beginning.

    >>> cut("Ann lives in Rome.", 3, words_and_marks)
    'Ann lives in'
    """
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle]) <= budget else (low, middle - 1)
    while low and count(text[:low].rstrip()) > budget:  # a longer text can have fewer tokens
        low -= 1
    return text[:low].rstrip()


def _joined(chosen: Sequence[Placed]) -> str:
    return "\n".join(one.text for one in sorted(chosen))
