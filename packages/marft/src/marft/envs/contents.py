"""Content digest: distinguishes tasks with equal data but different external content."""

from __future__ import annotations

import hashlib

CONTENT = "content_digest"  # key in a task's data
DIGITS = 16  # number of hexadecimal digits


def content_of(*parts: str | bytes) -> str:
    """Return a digest of parts in order; the boundaries between parts count.

    >>> content_of("ab", "c") == content_of("a", "bc")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        plain = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(plain).to_bytes(8, "big"))
        digest.update(plain)
    return digest.hexdigest()[:DIGITS]
