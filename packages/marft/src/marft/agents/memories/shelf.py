"""Buffer for entries in the order of writing, with a size limit, and a base class for memories of unchanged entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from marft.agents.memories.interface import Counter, Entry, Forgotten, Recall, Work
from marft.agents.memories.selection import Placed, fitting

ENTRY_BYTES = 400  # overhead of an entry beside its texts: Python objects and table rows


def size_of(entry: Entry) -> int:
    """Return the size of an entry in bytes."""
    return ENTRY_BYTES + bytes_of(entry.text) + bytes_of(entry.key)


def bytes_of(text: str) -> int:
    """Return a text's size in UTF-8 bytes."""
    return len(text.encode())


class Gone(NamedTuple):
    """Numbers of entries replaced by a new entry, and of entries evicted to make room."""

    replaced: tuple[int, ...]
    fallen: tuple[int, ...]


class Shelf:
    """Entries by number.

    Args:
        capacity: size limit in bytes; the oldest entries are evicted.
        working: maximum number of working entries; the newest stay.
        replaces: whether a fact replaces an earlier fact with the same key.
        each: additional bytes that an entry occupies elsewhere.
    """

    def __init__(self, capacity: int, working: int, replaces: bool, each: int = 0) -> None:
        self.capacity, self.working, self.replaces, self.each = capacity, working, replaces, each
        self.size = self._next = 0
        self._held: dict[int, Entry] = {}
        self._by_key: dict[str, dict[int, None]] = {}
        self._working: deque[int] = deque()

    def copy(self) -> Shelf:
        """Return a copy with the same entries."""
        other = Shelf(self.capacity, self.working, self.replaces, self.each)
        other.size, other._next = self.size, self._next
        other._held, other._working = dict(self._held), self._working.copy()
        other._by_key = {key: dict(numbers) for key, numbers in self._by_key.items()}
        return other

    @property
    def held(self) -> Mapping[int, Entry]:
        """All entries by number, the oldest first."""
        return self._held

    def put(self, entry: Entry) -> tuple[int, Gone]:
        """Add an entry, and return its number and the removed entries."""
        replaced = self.outdated(entry)
        for number in replaced:
            self.take(number)
        fallen = list[int]()
        if entry.kind == "working" and len(self._working) == self.working:
            fallen.append(self._working[0])
            self.take(fallen[0])
        number, self._next = self._next, self._next + 1
        self._held[number] = entry
        self._by_key.setdefault(entry.key, {})[number] = None
        if entry.kind == "working":
            self._working.append(number)
        self.size += size_of(entry) + self.each
        while self.size > self.capacity:
            oldest = next(iter(self._held))
            self.take(oldest)
            fallen.append(oldest)
        return number, Gone(replaced, tuple(fallen))

    def outdated(self, entry: Entry) -> tuple[int, ...]:
        """Return the numbers of entries replaced by a new entry, if replacement is enabled."""
        numbers = self._by_key.get(entry.key, ()) if self.replaces else ()
        return tuple(number for number in numbers if entry.replaces(self._held[number]))

    def take(self, number: int) -> Entry:
        """Remove and return an entry."""
        entry = self._held.pop(number)
        self.size -= size_of(entry) + self.each
        numbers = self._by_key[entry.key]
        del numbers[number]
        if not numbers:
            del self._by_key[entry.key]
        if entry.kind == "working":
            self._working.remove(number)
        return entry

    def drop(self, key: str) -> tuple[int, ...]:
        """Remove all entries with a key, and return their numbers."""
        numbers = tuple(self._by_key.get(key, ()))
        for number in numbers:
            self.take(number)
        return numbers

    def newest_first(self) -> list[int]:
        """Return all numbers, the newest first, with working entries before the others."""
        rest = [number for number in reversed(self._held) if self._held[number].kind != "working"]
        return [*reversed(self._working), *rest]


class Shelved(ABC):
    """Base for memories with unchanged entries; subclasses define the search."""

    most = 0  # maximum texts per read; 0 means no limit

    def __init__(self, shelf: Shelf, count: Counter) -> None:
        self.shelf, self.count = shelf, count

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.shelf.size

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Add entries in order."""
        for entry in entries:
            self.shelf.put(entry)
        return self.taken_in(entries)

    def taken_in(self, entries: Sequence[Entry]) -> Work:
        """Return the work for storing entries."""
        size = sum(bytes_of(entry.text) + bytes_of(entry.key) + self.shelf.each for entry in entries)
        return Work(sum(self.count(entry.text) for entry in entries), size)

    async def read(self, query: str, budget: int) -> Recall:
        """Return the best-ranked texts within a token budget."""
        ranked, looked_at = await self.ranked(query)
        held = self.shelf.held
        placed = [Placed(number, held[number].text) for number in ranked]
        texts = fitting(placed, budget, self.count, self.most)
        given = "\n".join(texts)
        return Recall(texts, Work(self.count(given), looked_at + bytes_of(given)))

    @abstractmethod
    async def ranked(self, query: str) -> tuple[Sequence[int], int]:
        """Return entry numbers, the best for the query first, and the number of bytes searched."""

    async def forget(self, key: str) -> Forgotten:
        """Remove all entries with a key."""
        return Forgotten(len(self.shelf.drop(key)))
