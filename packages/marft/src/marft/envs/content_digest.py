"""Content digest: distinguishes tasks with equal data but different external content."""

from __future__ import annotations

import hashlib

DIGEST_KEY = "content_digest"  # key in a task's data
DIGEST_LENGTH = 16  # number of hexadecimal digits


def digest_content(*parts: str | bytes) -> str:
    """Return a digest of parts in order; the boundaries between parts count.

    >>> digest_content("ab", "c") == digest_content("a", "bc")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        plain = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(plain).to_bytes(8, "big"))
        digest.update(plain)
    return digest.hexdigest()[:DIGEST_LENGTH]
