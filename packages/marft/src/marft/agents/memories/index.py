"""Vector index memory: entries with embeddings (character n-grams or a user function) and nearest-neighbor search."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Annotated
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.memories.buffered import BufferedMemory, EntryBuffer
from marft.common.errors import UserError
from marft.config.interfaces.memory import MAX_TEXT_DIVISOR, Entry, ForgetResult, MemorySystem, TokenCounter, Work
from marft.config.plugins import FunctionPath, import_object
from marft.config.settings import SmallCount

Embeddings = NDArray[np.float32]  # [n, d], each of length 1 or all zeros
Embedder = Callable[[Sequence[str]], Awaitable[Embeddings]]
NGRAM_SIZES = (3, 4)  # characters per n-gram
COMPONENT_BYTES = 4  # bytes per vector component


def hash_text(text: str, dimensions: int) -> NDArray[np.float32]:  # [d]
    """Return a text's embedding by hashed character n-grams, shape [d], scaled to length 1.

    This is feature hashing (Weinberger et al. 2009) on the n-grams of fastText. Each n-gram of 3 or 4 characters of
    ``<word>`` adds 1 or −1 to one dimension. One bit of its hash gives the sign, the rest the dimension.
    """
    vector = np.zeros(dimensions, np.float32)
    for word in text.casefold().split():
        marked = f"<{word}>"
        for characters in NGRAM_SIZES:
            for start in range(max(len(marked) - characters + 1, 1)):
                code = crc32(marked[start : start + characters].encode())
                vector[(code >> 1) % dimensions] += 1.0 if code & 1 else -1.0
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length else vector


def hash_embedder(dimensions: int) -> Embedder:
    """Return an embedder that uses :func:`hash_text`."""

    async def embed(texts: Sequence[str]) -> Embeddings:
        """Return the embeddings, [n, d]."""
        return np.array([hash_text(text, dimensions) for text in texts], np.float32).reshape(len(texts), dimensions)

    return embed


def function_embedder(function: Callable[[Sequence[str]], object], dimensions: int, name: str) -> Embedder:
    """Return an embedder that calls a user function.

    The function receives texts and returns one vector for each, or a coroutine that does.
    """

    async def embed(texts: Sequence[str]) -> Embeddings:
        """Return the embeddings, [n, d]."""
        result = function(texts)
        return validate_embeddings(await result if isawaitable(result) else result, len(texts), dimensions, name)

    return embed


def validate_embeddings(result: object, count: int, dimensions: int, name: str) -> Embeddings:
    """Return a user function's vectors, scaled to length 1, [n, d].

    Raises:
        UserError: the result is not one vector of ``dimensions`` finite numbers for each text.
    """
    try:
        array = np.asarray(result, np.float64)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if array.shape != (count, dimensions) or not np.isfinite(array).all():
        raise UserError(
            f"embed {name!r} must give a vector of {dimensions} finite numbers for each of {count} texts; it gave "
            f"{'x'.join(map(str, array.shape))}: set dimensions to the length of its vectors"
        )
    lengths = np.linalg.norm(array, axis=1, keepdims=True)
    return (array / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


class VectorTable:
    """Vector table by number in one matrix ``[rows, d]``, with the first ``len`` rows in use."""

    def __init__(self, dimensions: int) -> None:
        self._rows: Embeddings = np.zeros((4, dimensions), np.float32)
        self._numbers: list[int] = []
        self._row_by_number: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int, vector: NDArray[np.float32]) -> None:
        """Add a vector, [d]."""
        place = len(self._numbers)
        if place == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)[: max(place // 2, 1)]])
        self._rows[place] = vector
        self._numbers.append(number)
        self._row_by_number[number] = place

    def remove(self, number: int) -> None:
        """Remove a vector. The last row moves to its place, and the freed row is zeroed."""
        place, last = self._row_by_number.pop(number), self._numbers.pop()
        if last != number:
            self._rows[place] = self._rows[len(self._numbers)]
            self._numbers[place], self._row_by_number[last] = last, place
        self._rows[len(self._numbers)] = 0.0

    def scores(self, vector: NDArray[np.float32]) -> list[tuple[float, int]]:
        """Return (cosine similarity, number) of each vector.

        Cosines are rounded to six decimal places, so that summation order does not break ties.
        """
        products = self._rows[: len(self._numbers)].astype(np.float64) @ vector.astype(np.float64)
        return list(zip(np.round(products, 6).tolist(), self._numbers, strict=True))


class VectorMemory(MemorySystem):
    """Base for memory systems with nearest-neighbor search."""

    dimensions: Annotated[int, Field(ge=8, le=8192)] = Field(default=256, description="vector length")
    top_k: SmallCount = Field(default=8, description="maximum texts per read")
    overwrite: bool = Field(default=True, description="let a fact replace an earlier fact with the same key")
    embed: FunctionPath = Field(
        default="",
        description=(
            'import path of a function with one vector per text, optionally async; "": hashed character n-grams of '
            "words"
        ),
    )

    @model_validator(mode="after")
    def _check_max_bytes(self) -> VectorMemory:
        needed = self.vector_bytes * MAX_TEXT_DIVISOR
        if needed > self.max_bytes:
            raise PydanticCustomError(
                "dimensions",
                "dimensions: {count} take max_bytes of at least {needed}",
                {"count": self.dimensions, "needed": needed},
            )
        return self

    @property
    def vector_bytes(self) -> int:
        """Size of a vector in bytes."""
        return self.dimensions * COMPONENT_BYTES

    def build_embedder(self) -> Embedder:
        """Return the embedder for this configuration."""
        if not self.embed:
            return hash_embedder(self.dimensions)
        return function_embedder(import_object(self.embed), self.dimensions, self.embed)


class Index(VectorMemory):
    """Memory with one vector per text. A read returns the texts nearest to the query by cosine similarity."""

    def create_memory(self, count: TokenCounter) -> IndexMemory:
        """Return an empty memory."""
        buffer = EntryBuffer(self.entry_bytes, self.max_working_entries, self.overwrite, extra_bytes=self.vector_bytes)
        return IndexMemory(buffer, count, self.build_embedder(), self.dimensions, self.top_k)


class IndexMemory(BufferedMemory):
    """Vector index memory."""

    def __init__(self, buffer: EntryBuffer, count: TokenCounter, embed: Embedder, dimensions: int, picks: int) -> None:
        super().__init__(buffer, count)
        self.embed, self.max_texts = embed, picks
        self.table = VectorTable(dimensions)

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Embed and add entries."""
        # one call for all entries: an error changes nothing
        embeddings = await self.embed([entry.text for entry in entries])
        for entry, vector in zip(entries, embeddings, strict=True):
            number, removed = self.buffer.add(entry)
            self.table.add(number, vector)
            for removed_number in (*removed.replaced, *removed.dropped):
                self.table.remove(removed_number)
        assert len(self.table) == len(self.buffer.entries)
        return self.storage_work(entries)

    async def rank(self, query: str) -> tuple[Sequence[int], int]:
        """Return entry numbers by similarity to the query, and the number of bytes searched.

        Working entries come first; ties go to the newer entry. An empty query returns the newest first.
        """
        if not query.strip():
            return self.buffer.newest_first(), 0
        (vector,) = await self.embed([query])
        entries = self.buffer.entries
        working = [number for number in self.buffer.newest_first() if entries[number].kind == "working"]
        nearest = sorted(self.table.scores(vector), reverse=True)
        others = (number for _, number in nearest if entries[number].kind != "working")
        return [*working, *others], len(self.table) * self.buffer.extra_bytes

    def remove_replaced(self, entry: Entry) -> None:
        """Remove the entries that a new entry replaces."""
        for number in self.buffer.find_replaced(entry):
            self.buffer.pop(number)
            self.table.remove(number)

    async def forget(self, key: str) -> ForgetResult:
        """Remove all entries with a key."""
        numbers = self.buffer.remove_key(key)
        for number in numbers:
            self.table.remove(number)
        return ForgetResult(len(numbers))
