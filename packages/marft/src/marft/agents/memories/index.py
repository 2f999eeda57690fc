"""Vector index memory: entries with embeddings and nearest-neighbor search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.memories.embedding import Embedder, VectorTable, function_embedder, hash_embedder
from marft.agents.memories.entry_buffer import BufferedMemory, EntryBuffer
from marft.agents.memories.interface import Entry, ForgetResult, TokenCounter, Work
from marft.config.plugin_types import MAX_TEXT_DIVISOR, MemoryPart
from marft.config.plugins import import_object
from marft.config.python_objects import ImportPath
from marft.config.settings import SmallCount

COMPONENT_BYTES = 4  # bytes per vector component


class VectorMemoryPart(MemoryPart):
    """Base for memory systems with nearest-neighbor search."""

    dimensions: Annotated[int, Field(ge=8, le=8192)] = 256  # vector length
    top_k: SmallCount = 8  # maximum texts per read
    overwrite: bool = True  # whether a fact replaces an earlier fact with the same key
    # import path of a function that returns one vector per text, optionally async; "" hashes character n-grams of words
    embed: ImportPath = ""

    @field_validator("embed")
    @classmethod
    def _check_embed(cls, path: str, info: ValidationInfo) -> str:
        if path and not callable(import_object(path, info.context)):
            raise PydanticCustomError("embed", "{path} is no function of texts", {"path": repr(path)})
        return path

    @model_validator(mode="after")
    def _check_max_bytes(self) -> VectorMemoryPart:
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


class Index(VectorMemoryPart):
    """Memory with one vector per text. A read returns the texts nearest to the query by cosine similarity."""

    def begin(self, count: TokenCounter) -> IndexMemory:
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
