"""Memories of unchanged entries: a buffer with a size limit, the raw log, and the key-value memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import Field

from marft.agents.memories.selection import NumberedText, select_fitting, word_set
from marft.config.interfaces.memory import Entry, ForgetResult, MemorySystem, ReadResult, TokenCounter, Work
from marft.config.settings import Fraction

ENTRY_BYTES = 400  # overhead of an entry beside its texts: Python objects and table rows


def entry_size(entry: Entry) -> int:
    """Return the size of an entry in bytes."""
    return ENTRY_BYTES + utf8_size(entry.text) + utf8_size(entry.key)


def utf8_size(text: str) -> int:
    """Return a text's size in UTF-8 bytes."""
    return len(text.encode())


class RemovedEntries(NamedTuple):
    """Numbers of entries replaced by a new entry, and of entries evicted to make room."""

    replaced: tuple[int, ...]
    dropped: tuple[int, ...]


class EntryBuffer:
    """Entries by number.

    Args:
        capacity: size limit in bytes; the oldest entries are evicted.
        working: maximum number of working entries; the newest stay.
        replaces: whether a fact replaces an earlier fact with the same key.
        extra_bytes: additional bytes that an entry occupies elsewhere.
    """

    def __init__(self, capacity: int, working: int, replaces: bool, extra_bytes: int = 0) -> None:
        self.capacity, self.working, self.replaces, self.extra_bytes = capacity, working, replaces, extra_bytes
        self.size = self._next = 0
        self._entries: dict[int, Entry] = {}
        self._by_key: dict[str, dict[int, None]] = {}
        self._working: deque[int] = deque()

    def copy(self) -> EntryBuffer:
        """Return a copy with the same entries."""
        copied = EntryBuffer(self.capacity, self.working, self.replaces, self.extra_bytes)
        copied.size, copied._next = self.size, self._next
        copied._entries, copied._working = dict(self._entries), self._working.copy()
        copied._by_key = {key: dict(numbers) for key, numbers in self._by_key.items()}
        return copied

    @property
    def entries(self) -> Mapping[int, Entry]:
        """All entries by number, the oldest first."""
        return self._entries

    def add(self, entry: Entry) -> tuple[int, RemovedEntries]:
        """Add an entry, and return its number and the removed entries."""
        replaced = self.find_replaced(entry)
        for number in replaced:
            self.pop(number)
        dropped = list[int]()
        if entry.kind == "working" and len(self._working) == self.working:
            dropped.append(self._working[0])
            self.pop(dropped[0])
        number, self._next = self._next, self._next + 1
        self._entries[number] = entry
        self._by_key.setdefault(entry.key, {})[number] = None
        if entry.kind == "working":
            self._working.append(number)
        self.size += entry_size(entry) + self.extra_bytes
        while self.size > self.capacity:
            oldest = next(iter(self._entries))
            self.pop(oldest)
            dropped.append(oldest)
        return number, RemovedEntries(replaced, tuple(dropped))

    def find_replaced(self, entry: Entry) -> tuple[int, ...]:
        """Return the numbers of entries replaced by a new entry, if replacement is enabled."""
        numbers = self._by_key.get(entry.key, ()) if self.replaces else ()
        return tuple(number for number in numbers if entry.replaces(self._entries[number]))

    def pop(self, number: int) -> Entry:
        """Remove and return an entry."""
        entry = self._entries.pop(number)
        self.size -= entry_size(entry) + self.extra_bytes
        numbers = self._by_key[entry.key]
        del numbers[number]
        if not numbers:
            del self._by_key[entry.key]
        if entry.kind == "working":
            self._working.remove(number)
        return entry

    def remove_key(self, key: str) -> tuple[int, ...]:
        """Remove all entries with a key, and return their numbers."""
        numbers = tuple(self._by_key.get(key, ()))
        for number in numbers:
            self.pop(number)
        return numbers

    def newest_first(self) -> list[int]:
        """Return all numbers, the newest first, with working entries before the others."""
        others = [number for number in reversed(self._entries) if self._entries[number].kind != "working"]
        return [*reversed(self._working), *others]


class BufferedMemory(ABC):
    """Base for memories with unchanged entries; subclasses define the search."""

    max_texts = 0  # maximum texts per read; 0 means no limit

    def __init__(self, buffer: EntryBuffer, count: TokenCounter) -> None:
        self.buffer, self.count = buffer, count

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        return self.buffer.size

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Add entries in order."""
        for entry in entries:
            self.buffer.add(entry)
        return self.storage_work(entries)

    def storage_work(self, entries: Sequence[Entry]) -> Work:
        """Return the work for storing entries."""
        size = sum(utf8_size(entry.text) + utf8_size(entry.key) + self.buffer.extra_bytes for entry in entries)
        return Work(sum(self.count(entry.text) for entry in entries), size)

    async def read(self, query: str, budget: int) -> ReadResult:
        """Return the best-ranked texts within a token budget."""
        numbers, looked_at = await self.rank(query)
        entries = self.buffer.entries
        numbered = [NumberedText(number, entries[number].text) for number in numbers]
        texts = select_fitting(numbered, budget, self.count, self.max_texts)
        joined = "\n".join(texts)
        return ReadResult(texts, Work(self.count(joined), looked_at + utf8_size(joined)))

    @abstractmethod
    async def rank(self, query: str) -> tuple[Sequence[int], int]:
        """Return entry numbers, the best for the query first, and the number of bytes searched."""

    async def forget(self, key: str) -> ForgetResult:
        """Remove all entries with a key."""
        return ForgetResult(len(self.buffer.remove_key(key)))


class Log(MemorySystem):
    """Verbatim log. A read returns the newest entries within the budget, for every query. Old facts stay before new
    facts.
    """

    def create_memory(self, count: TokenCounter) -> LogMemory:
        """Return an empty memory."""
        return LogMemory(EntryBuffer(self.entry_bytes, self.max_working_entries, replaces=False), count)


class LogMemory(BufferedMemory):
    """Log memory."""

    async def rank(self, query: str) -> tuple[Sequence[int], int]:  # noqa: ARG002  the query is irrelevant
        """Return entry numbers, the newest first."""
        return self.buffer.newest_first(), 0


class KeyValue(MemorySystem):
    """Memory of texts by key: a fact replaces an earlier fact with the same key. A read returns entries whose key
    words occur in the query. An entry without a key is found by the words of its text.
    """

    min_overlap: Fraction = Field(default=0.5, description="minimum share of a key's words in the query")

    def create_memory(self, count: TokenCounter) -> KeyValueMemory:
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
