"""Text similarity, to match actions to nodes and prompts to contexts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from marft.agents.memories.embedding import hash_text, validate_embeddings
from marft.config.plugins import import_object

Vectors = NDArray[np.float32]  # [n, d], each of length 1 or zero
DIGITS = 4  # decimals of a stored vector element


def embed_texts(texts: Sequence[str], dimensions: int, embed: str = "") -> Vectors:
    """Return texts as vectors, shape [texts, dimensions], from hashed word pieces or from a custom function.

    Args:
        texts: texts to embed.
        dimensions: length of a vector.
        embed: import path of a function from texts to vectors; "" hashes word pieces.

    Raises:
        ValueError: the function returns vectors of the wrong shape or with invalid numbers.
    """
    if not embed:
        return np.array([_hashed_vector(text, dimensions) for text in texts], np.float32).reshape(
            len(texts), dimensions
        )
    return validate_embeddings(import_object(embed)(list(texts)), len(texts), dimensions, embed)


@lru_cache(4096)
def _hashed_vector(text: str, dimensions: int) -> NDArray[np.float32]:
    return hash_text(text, dimensions)  # cached, because tasks are played often


def cosine_similarity(vector: NDArray[np.floating], other: Sequence[float]) -> float:
    """Return the cosine similarity of two vectors; 0 for a zero or empty vector.

    The result is rounded to six decimals, so that the order of summation does not decide.

    >>> cosine_similarity(np.array([3.0, 4.0]), (6.0, 8.0))
    1.0
    """
    a, b = np.asarray(vector, np.float64), np.asarray(other, np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return round(float(a @ b) / lengths, 6) if lengths else 0.0


def find_nearest(vector: NDArray[np.floating], candidates: Sequence[Sequence[float]], threshold: float) -> int | None:
    """Return the index of the most similar vector, the first in a tie; None if no vector reaches the threshold."""
    scores = [cosine_similarity(vector, candidate) for candidate in candidates]
    best = max(range(len(scores)), key=scores.__getitem__, default=None)
    return best if best is not None and scores[best] >= threshold else None


def add_vectors(vector: Sequence[float], other: NDArray[np.floating]) -> tuple[float, ...]:
    """Return the sum of two vectors, rounded for storage."""
    total = np.asarray(vector, np.float64) + other if len(vector) else np.asarray(other, np.float64)
    return tuple(np.round(total, DIGITS).tolist())
