"""Which of several things a text is most like: how nodes and contexts are found."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from marft.agents.memories.embedding import checked, hashed
from marft.config.plugins import import_path

Vectors = NDArray[np.float32]  # [n, d], each of length 1, or of zeros
DIGITS = 4  # of a number of a vector that is written down


def vectors_of(texts: Sequence[str], dimensions: int, embed: str = "") -> Vectors:
    """Texts as vectors: by hashed pieces of words, or by somebody's own function of texts.

    Raises:
        ValueError: the function gives no such vectors.
    """
    if not embed:
        return np.array([_hashed(text, dimensions) for text in texts], np.float32).reshape(len(texts), dimensions)
    return checked(import_path(embed)(list(texts)), len(texts), dimensions, embed)


@lru_cache(4096)
def _hashed(text: str, dimensions: int) -> NDArray[np.float32]:
    return hashed(text, dimensions)  # of a task that is played often


def cosine(vector: NDArray[np.floating], others: Sequence[float]) -> float:
    """The cosine of two vectors; 0 where one is of zeros, or empty. To six places, so that no order of sums decides.

    >>> cosine(np.array([3.0, 4.0]), (6.0, 8.0))
    1.0
    """
    a, b = np.asarray(vector, np.float64), np.asarray(others, np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return round(float(a @ b) / lengths, 6) if lengths else 0.0


def nearest(vector: NDArray[np.floating], among: Sequence[Sequence[float]], threshold: float) -> int | None:
    """The place of the one that is most alike, the first among equals; None where all are less alike than the
    threshold."""
    scores = [cosine(vector, other) for other in among]
    best = max(range(len(scores)), key=scores.__getitem__, default=None)
    return best if best is not None and scores[best] >= threshold else None


def added(vector: Sequence[float], other: NDArray[np.floating]) -> tuple[float, ...]:
    """The sum of two, as it is written down."""
    both = np.asarray(vector, np.float64) + other if len(vector) else np.asarray(other, np.float64)
    return tuple(np.round(both, DIGITS).tolist())
