"""Masking of secrets in stored text, including secrets cut in the middle."""

from __future__ import annotations

from collections.abc import Sequence

MIN_MATCH_CHARS = 8  # minimum length of a match that is not a coincidence, in characters
MASK = "…"


def mask_secrets(secrets: Sequence[str], text: str) -> str:
    """Replace every secret, or any part with eight or more characters, with ``…``.

    >>> mask_secrets(["abcdefghijklmnop"], "GET /e/abcdefghijklmnop/a and /e/abcdefghij")
    'GET /e/…/a and /e/…'
    """
    for secret in secrets:
        hidden = [False] * len(text)
        for start in range(len(secret) - MIN_MATCH_CHARS + 1):
            at = text.find(piece := secret[start : start + MIN_MATCH_CHARS])
            while at >= 0:
                hidden[at : at + MIN_MATCH_CHARS] = [True] * MIN_MATCH_CHARS
                at = text.find(piece, at + 1)
        if any(hidden):
            visible = [
                MASK if hide and not (position and hidden[position - 1]) else "" if hide else text[position]
                for position, hide in enumerate(hidden)
            ]
            text = "".join(visible)
    return text
