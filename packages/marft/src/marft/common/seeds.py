"""Named random streams: each seed is a hash of the run's seed and a name.

No result depends on the order or timing of other results, and a resumed run needs no saved generator state.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(seed: int, *words: str | int) -> int:
    """Return a 63-bit seed for the stream named ``words``.

    >>> derive_seed(0, "adapter", "actor") == derive_seed(0, "adapter", "actor") != derive_seed(0, "adapter", "critic")
    True
    """
    text = "\x1f".join(str(word) for word in (seed, *words))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *words: str | int) -> np.random.Generator:
    """Return a counter-based generator for the stream named ``words``."""
    return np.random.Generator(np.random.Philox(derive_seed(seed, *words)))
