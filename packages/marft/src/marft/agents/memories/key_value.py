"""Key-value memory for facts."""

from __future__ import annotations

from collections.abc import Sequence

from marft.agents.memories.interface import Counter
from marft.agents.memories.selection import words_of
from marft.agents.memories.shelf import Shelf, Shelved, bytes_of
from marft.config.parts import MemoryPart
from marft.config.settings import Fraction


class KeyValue(MemoryPart):
    """Memory of texts by key: a fact replaces an earlier fact with the same key. A read returns entries whose key
    words occur in the query. An entry without a key is found by the words of its text.
    """

    least: Fraction = 0.5  # minimum share of a key's words that must occur in the query

    def begin(self, count: Counter) -> KeyValueMemory:
        """Return an empty memory."""
        return KeyValueMemory(Shelf(self.room, self.working, replaces=True), count, self.least)


class KeyValueMemory(Shelved):
    """Memory with lookup by the words of keys."""

    def __init__(self, shelf: Shelf, count: Counter, least: float) -> None:
        super().__init__(shelf, count)
        self.least = least

    async def ranked(self, query: str) -> tuple[Sequence[int], int]:
        """Return entry numbers by the matched share of their key words, and the number of bytes searched.

        Working entries come first. An empty query returns all entries, the newest first.
        """
        if not query.strip():
            return self.shelf.newest_first(), 0
        asked, looked_at = words_of(query), 0
        found = list[tuple[float, int, int]]()
        working = list[int]()
        for number, entry in self.shelf.held.items():
            looked_at += bytes_of(entry.key) or bytes_of(entry.text)
            words = words_of(entry.key) or words_of(entry.text)
            shared = len(words & asked)
            if entry.kind == "working":
                working.append(number)
            elif shared and shared >= self.least * len(words):
                found.append((shared / len(words), shared, number))
        return [*reversed(working), *(number for _, _, number in sorted(found, reverse=True))], looked_at
