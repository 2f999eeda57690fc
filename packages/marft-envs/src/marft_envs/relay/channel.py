"""Transmission of messages through a limited, noisy channel."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

Noise = Literal["erase", "drop", "replace"]
ERASED_SYMBOL = "?"


def transmit(
    text: str,
    random: Random,
    words: int,
    characters: int,
    alphabet: Sequence[str],
    noise: float,
    kind: Noise,
    replacements: Sequence[str],
) -> str:
    """Return a message's words after the limits and the noise.

    Args:
        text: the message.
        random: source of noise.
        words: maximum words; 0 for no limit.
        characters: maximum characters, without spaces.
        alphabet: allowed words; () allows all.
        noise: probability that a word is hit.
        kind: effect on a hit word: "erase" shows ``?``, "drop" removes it, "replace" puts another word in its place.
        replacements: words to choose from for "replace".

    >>> transmit("the blue one", Random(0), 2, 80, (), 0.0, "erase", ())
    'the blue'
    >>> transmit("a b a b", Random(0), 0, 80, ("a",), 1.0, "erase", ())
    '? ?'
    """
    message_words = text.split()
    if alphabet:
        allowed_words = {word.casefold(): word for word in alphabet}
        message_words = [allowed_words[word.casefold()] for word in message_words if word.casefold() in allowed_words]
    limited, remaining_characters = list[str](), characters
    for word in message_words[: words or None]:
        remaining_characters -= len(word)
        if remaining_characters < 0:
            break
        limited.append(word)
    received = list[str]()
    for word in limited:
        if random.random() >= noise:
            received.append(word)
        elif kind != "drop":
            received.append(ERASED_SYMBOL if kind == "erase" else random.choice(list(replacements)))
    return " ".join(received)
