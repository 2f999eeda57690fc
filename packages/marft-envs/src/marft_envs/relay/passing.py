"""What comes through of a message."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

Noise = Literal["erase", "drop", "replace"]
ERASED = "?"


def passed(
    text: str, random: Random, words: int, characters: int, alphabet: Sequence[str], noise: float, kind: Noise,
    others: Sequence[str],
) -> str:  # fmt: skip
    """The words that come through, of the first ones that may.

    Args:
        words: that may come through; 0: all.
        characters: that may, spaces apart.
        alphabet: words that may; (): any.
        noise: how likely each word is hit.
        kind: what becomes of one that is hit: it stands there as ``?``, is gone, or is another one.
        others: words that may stand in the place of one that is hit.

    >>> passed("the blue one", Random(0), 2, 80, (), 0.0, "erase", ())
    'the blue'
    >>> passed("a b a b", Random(0), 0, 80, ("a",), 1.0, "erase", ())
    '? ?'
    """
    given = text.split()
    if alphabet:
        known = {word.casefold(): word for word in alphabet}
        given = [known[word.casefold()] for word in given if word.casefold() in known]
    kept, left = list[str](), characters
    for word in given[: words or None]:
        left -= len(word)
        if left < 0:
            break
        kept.append(word)
    came = list[str]()
    for word in kept:
        if random.random() >= noise:
            came.append(word)
        elif kind != "drop":
            came.append(ERASED if kind == "erase" else random.choice(list(others)))
    return " ".join(came)
