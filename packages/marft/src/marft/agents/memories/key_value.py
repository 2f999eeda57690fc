"""Key-value memory for facts."""

from __future__ import annotations

from collections.abc import Sequence

from marft.agents.memories.entry_buffer import BufferedMemory, EntryBuffer, utf8_size
from marft.agents.memories.interface import TokenCounter
from marft.agents.memories.selection import word_set
from marft.config.plugin_types import MemoryPart
from marft.config.settings import Fraction


class KeyValue(MemoryPart):
    """Memory of texts by key: a fact replaces an earlier fact with the same key. A read returns entries whose key
    words occur in the query. An entry without a key is found by the words of its text.
    """

    min_overlap: Fraction = 0.5  # minimum share of a key's words that must occur in the query

    def begin(self, count: TokenCounter) -> KeyValueMemory:
        """Return an empty memory."""
        return KeyValueMemory(
            EntryBuffer(self.entry_bytes, self.max_working_entries, replaces=True), count, self.min_overlap
        )


class KeyValueMemory(BufferedMemory):
    """Memory with lookup by the words of keys."""

    def __init__(self, buffer: EntryBuffer, count: TokenCounter, min_share: float) -> None:
        super().__init__(buffer, count)
        self.min_share = min_share

    async def rank(self, query: str) -> tuple[Sequence[int], int]:
        """Return entry numbers by the matched share of their key words, and the number of bytes searched.

        Working entries come first. An empty query returns all entries, the newest first.
        """
        if not query.strip():
            return self.buffer.newest_first(), 0
        query_words, looked_at = word_set(query), 0
        matches = list[tuple[float, int, int]]()
        working = list[int]()
        for number, entry in self.buffer.entries.items():
            looked_at += utf8_size(entry.key) or utf8_size(entry.text)
            words = word_set(entry.key) or word_set(entry.text)
            shared = len(words & query_words)
            if entry.kind == "working":
                working.append(number)
            elif shared and shared >= self.min_share * len(words):
                matches.append((shared / len(words), shared, number))
        return [*reversed(working), *(number for _, _, number in sorted(matches, reverse=True))], looked_at
