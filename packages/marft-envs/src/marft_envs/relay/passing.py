"""Transmission of messages through a limited, noisy channel."""

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
    """Return a message's words after the limits and the noise.

    Args:
        text: the message.
        random: source of noise.
        words: maximum words; 0 for no limit.
        characters: maximum characters, without spaces.
        alphabet: allowed words; () allows all.
        noise: probability that a word is hit.
        kind: effect on a hit word: "erase" shows ``?``, "drop" removes it, "replace" puts another word in its place.
        others: words to choose from for "replace".

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
