"""Entries in the order in which they came, in bounded memory; and the systems that keep them as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from marft.agents.memories.interface import Counter, Entry, Forgotten, Recall, Work
from marft.agents.memories.selection import Placed, fitting

ENTRY_BYTES = 400  # of an entry beside its texts: objects, and its places in tables


def size_of(entry: Entry) -> int:
    """Bytes that an entry takes."""
    return ENTRY_BYTES + bytes_of(entry.text) + bytes_of(entry.key)


def bytes_of(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text.encode())


class Gone(NamedTuple):
    """Numbers of entries whose place a new one took, and of those for which there is no room any more."""

    replaced: tuple[int, ...]
    fallen: tuple[int, ...]


class Shelf:
    """Entries by number.

    Args:
        capacity: bytes; the oldest fall out.
        working: entries of that kind, of which the newest stay.
        replaces: whether a fact takes the place of an earlier one of its key.
        each: bytes that an entry takes elsewhere.
    """

    def __init__(self, capacity: int, working: int, replaces: bool, each: int = 0) -> None:
        self.capacity, self.working, self.replaces, self.each = capacity, working, replaces, each
        self.size = self._next = 0
        self._held: dict[int, Entry] = {}
        self._by_key: dict[str, dict[int, None]] = {}
        self._working: deque[int] = deque()

    def copy(self) -> Shelf:
        """Another one of the same entries."""
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
        """Take one in → its number, and what went for it."""
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
        """Numbers of the entries that a new one makes old, where that counts here."""
        numbers = self._by_key.get(entry.key, ()) if self.replaces else ()
        return tuple(number for number in numbers if entry.replaces(self._held[number]))

    def take(self, number: int) -> Entry:
        """Take one out."""
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
        """Take out all of a key → their numbers."""
        numbers = tuple(self._by_key.get(key, ()))
        for number in numbers:
            self.take(number)
        return numbers

    def newest_first(self) -> list[int]:
        """Numbers of all, those of the kind "working" before the others."""
        rest = [number for number in reversed(self._held) if self._held[number].kind != "working"]
        return [*reversed(self._working), *rest]


class Shelved(ABC):
    """Base of systems that keep entries as they are, and differ in how they look for them."""

    most = 0  # texts of a read; 0: however many

    def __init__(self, shelf: Shelf, count: Counter) -> None:
        self.shelf, self.count = shelf, count

    @property
    def size(self) -> int:
        return self.shelf.size

    async def write(self, entries: Sequence[Entry]) -> Work:
        for entry in entries:
            self.shelf.put(entry)
        return self.taken_in(entries)

    def taken_in(self, entries: Sequence[Entry]) -> Work:
        """What it takes to put entries down."""
        size = sum(bytes_of(entry.text) + bytes_of(entry.key) + self.shelf.each for entry in entries)
        return Work(sum(self.count(entry.text) for entry in entries), size)

    async def read(self, query: str, budget: int) -> Recall:
        ranked, looked_at = await self.ranked(query)
        held = self.shelf.held
        placed = [Placed(number, held[number].text) for number in ranked]
        texts = fitting(placed, budget, self.count, self.most)
        given = "\n".join(texts)
        return Recall(texts, Work(self.count(given), looked_at + bytes_of(given)))

    @abstractmethod
    async def ranked(self, query: str) -> tuple[Sequence[int], int]:
        """Numbers of the entries, the best for a question first, and the bytes that were looked at to find them."""

    async def forget(self, key: str) -> Forgotten:
        return Forgotten(len(self.shelf.drop(key)))
