"""Vector index memory: entries with embeddings and nearest-neighbor search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.memories.embedding import Embedder, Table, by_function, by_hashes
from marft.agents.memories.interface import Counter, Entry, Forgotten, Work
from marft.agents.memories.shelf import Shelf, Shelved
from marft.config.given import ImportPath
from marft.config.parts import LONGEST_SHARE, MemoryPart
from marft.config.plugins import import_path
from marft.config.settings import Few

NUMBER_BYTES = 4  # bytes per vector component


class Searched(MemoryPart):
    """Base for memory systems with nearest-neighbor search."""

    dimensions: Annotated[int, Field(ge=8, le=8192)] = 256  # vector length
    picks: Few = 8  # maximum texts per read
    replaces: bool = True  # whether a fact replaces an earlier fact with the same key
    # import path of a function that returns one vector per text, optionally async; "" hashes character n-grams of words
    embed: ImportPath = ""

    @field_validator("embed")
    @classmethod
    def _is_there(cls, path: str, info: ValidationInfo) -> str:
        if path and not callable(import_path(path, info.context)):
            raise PydanticCustomError("embed", "{path} is no function of texts", {"path": repr(path)})
        return path

    @model_validator(mode="after")
    def _has_room(self) -> Searched:
        needed = self.vector_bytes * LONGEST_SHARE
        if needed > self.capacity:
            raise PydanticCustomError(
                "dimensions", "dimensions: {count} take a capacity of at least {needed} bytes",
                {"count": self.dimensions, "needed": needed},
            )  # fmt: skip
        return self

    @property
    def vector_bytes(self) -> int:
        """Size of a vector in bytes."""
        return self.dimensions * NUMBER_BYTES

    def embedder(self) -> Embedder:
        """Return the embedder for this configuration."""
        if not self.embed:
            return by_hashes(self.dimensions)
        return by_function(import_path(self.embed), self.dimensions, self.embed)


class Index(Searched):
    """Memory with one vector per text. A read returns the texts nearest to the query by cosine similarity."""

    def begin(self, count: Counter) -> IndexMemory:
        """Return an empty memory."""
        shelf = Shelf(self.room, self.working, self.replaces, each=self.vector_bytes)
        return IndexMemory(shelf, count, self.embedder(), self.dimensions, self.picks)


class IndexMemory(Shelved):
    """Vector index memory."""

    def __init__(self, shelf: Shelf, count: Counter, embed: Embedder, dimensions: int, picks: int) -> None:
        super().__init__(shelf, count)
        self.embed, self.most = embed, picks
        self.table = Table(dimensions)

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Embed and add entries."""
        # one call for all entries: an error changes nothing
        vectors = await self.embed([entry.text for entry in entries])
        for entry, vector in zip(entries, vectors, strict=True):
            number, gone = self.shelf.put(entry)
            self.table.put(number, vector)
            for other in (*gone.replaced, *gone.fallen):
                self.table.drop(other)
        assert len(self.table) == len(self.shelf.held)
        return self.taken_in(entries)

    async def ranked(self, query: str) -> tuple[Sequence[int], int]:
        """Return entry numbers by similarity to the query, and the number of bytes searched.

        Working entries come first; ties go to the newer entry. An empty query returns the newest first.
        """
        if not query.strip():
            return self.shelf.newest_first(), 0
        (vector,) = await self.embed([query])
        held = self.shelf.held
        working = [number for number in self.shelf.newest_first() if held[number].kind == "working"]
        nearest = sorted(self.table.scores(vector), reverse=True)
        rest = (number for _, number in nearest if held[number].kind != "working")
        return [*working, *rest], len(self.table) * self.shelf.each

    def outdate(self, entry: Entry) -> None:
        """Remove the entries that a new entry replaces."""
        for number in self.shelf.outdated(entry):
            self.shelf.take(number)
            self.table.drop(number)

    async def forget(self, key: str) -> Forgotten:
        """Remove all entries with a key."""
        numbers = self.shelf.drop(key)
        for number in numbers:
            self.table.drop(number)
        return Forgotten(len(numbers))
