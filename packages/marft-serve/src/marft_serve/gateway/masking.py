"""Masking of secrets in stored text, including secrets cut in the middle."""

from __future__ import annotations

from collections.abc import Sequence

LEAST = 8  # minimum length of a match that is not a coincidence, in characters
MASK = "…"


def without(secrets: Sequence[str], text: str) -> str:
    """Replace every secret, or any part with eight or more characters, with ``…``.

    >>> without(["abcdefghijklmnop"], "GET /e/abcdefghijklmnop/a and /e/abcdefghij")
    'GET /e/…/a and /e/…'
    """
    for secret in secrets:
        hidden = [False] * len(text)
        for start in range(len(secret) - LEAST + 1):
            at = text.find(piece := secret[start : start + LEAST])
            while at >= 0:
                hidden[at : at + LEAST] = [True] * LEAST
                at = text.find(piece, at + 1)
        if any(hidden):
            shown = [
                MASK if hide and not (place and hidden[place - 1]) else "" if hide else text[place]
                for place, hide in enumerate(hidden)
            ]
            text = "".join(shown)
    return text
