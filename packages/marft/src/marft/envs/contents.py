"""What a task comes with and does not hold itself: a digest of it tells the task from one that comes with another."""

from __future__ import annotations

import hashlib

CONTENT = "content_digest"  # the key of a task's data
DIGITS = 16  # hexadecimal ones


def content_of(*parts: str | bytes) -> str:
    """A digest of parts in their order; where one ends and the next begins counts.

    >>> content_of("ab", "c") == content_of("a", "bc")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        plain = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(plain).to_bytes(8, "big"))
        digest.update(plain)
    return digest.hexdigest()[:DIGITS]
