"""Texts as vectors: hashed pieces of words, or what somebody's own function says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]  # [n, d], each of length 1, or of zeros
Embedder = Callable[[Sequence[str]], Awaitable[Vectors]]
PIECES = (3, 4)  # characters of a piece


def hashed(text: str, dimensions: int) -> NDArray[np.float32]:  # [d]
    """A text by the pieces of its words (feature hashing, Weinberger et al. 2009, on the pieces that fastText takes):
    each piece of 3 or 4 characters of ``<word>`` adds 1 or −1, as one bit of its hash says, to the place that the rest
    of the hash names; the sum is scaled to length 1.
    """
    found = np.zeros(dimensions, np.float32)
    for word in text.casefold().split():
        marked = f"<{word}>"
        for characters in PIECES:
            for start in range(max(len(marked) - characters + 1, 1)):
                code = crc32(marked[start : start + characters].encode())
                found[(code >> 1) % dimensions] += 1.0 if code & 1 else -1.0
    length = float(np.linalg.norm(found))
    return found / np.float32(length) if length else found


def by_hashes(dimensions: int) -> Embedder:
    """Embeds by :func:`hashed`."""

    async def embed(texts: Sequence[str]) -> Vectors:
        return np.array([hashed(text, dimensions) for text in texts], np.float32).reshape(len(texts), dimensions)

    return embed


def by_function(function: Callable[[Sequence[str]], object], dimensions: int, name: str) -> Embedder:
    """Embeds by a function of texts that gives a vector each, or a coroutine of them."""

    async def embed(texts: Sequence[str]) -> Vectors:
        given = function(texts)
        return checked(await given if isawaitable(given) else given, len(texts), dimensions, name)

    return embed


def checked(given: object, count: int, dimensions: int, name: str) -> Vectors:
    """Vectors of somebody else's, scaled to length 1.

    Raises:
        ValueError: they are not one vector of so many finite numbers for each text.
    """
    try:
        found = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        found = np.zeros(0)
    if found.shape != (count, dimensions) or not np.isfinite(found).all():
        raise ValueError(
            f"embed {name!r} must give a vector of {dimensions} finite numbers for each of {count} texts; it gave "
            f"{'x'.join(map(str, found.shape))}: set dimensions to the length of its vectors"
        )
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    return (found / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


class Table:
    """Vectors by number, in one matrix: ``[rows, d]``, of which the first ``len`` are used."""

    def __init__(self, dimensions: int) -> None:
        self._rows: Vectors = np.zeros((4, dimensions), np.float32)
        self._numbers: list[int] = []
        self._place: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def put(self, number: int, vector: NDArray[np.float32]) -> None:
        """Add one."""
        place = len(self._numbers)
        if place == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)[: max(place // 2, 1)]])
        self._rows[place] = vector
        self._numbers.append(number)
        self._place[number] = place

    def drop(self, number: int) -> None:
        """Take one out; the last takes its place, and nothing of it stays."""
        place, last = self._place.pop(number), self._numbers.pop()
        if last != number:
            self._rows[place] = self._rows[len(self._numbers)]
            self._numbers[place], self._place[last] = last, place
        self._rows[len(self._numbers)] = 0.0

    def scores(self, vector: NDArray[np.float32]) -> list[tuple[float, int]]:
        """Cosines with numbers, to six places, so that no order of sums decides between equals."""
        cosines = self._rows[: len(self._numbers)].astype(np.float64) @ vector.astype(np.float64)
        return list(zip(np.round(cosines, 6).tolist(), self._numbers, strict=True))
