"""Keys that environment variables hold. Nothing here, and nothing that goes wrong with a key, says what it is."""

from __future__ import annotations

import os


def read_key(variable: str) -> str:
    """What the variable holds, as it can be sent in a header: without white space around it.

    Raises:
        ValueError: it is not set, or holds what no key has.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ValueError(f"the environment variable {variable} is not set; export {variable}=…")
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"the environment variable {variable} holds characters that no key has")
    return key


def without(key: str, text: str) -> str:
    """The text with ``***`` for the key, wherever it holds it."""
    return text.replace(key, "***") if key else text
