"""Memory store for agents: accepts any text, and records the cost of each call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import cast

from marft.agents.memories.costs import Cost, Ledger
from marft.agents.memories.deferred import Deferred
from marft.agents.memories.interface import Counter, Entry, Forgotten, Memory, Recall, System, Work
from marft.agents.memories.selection import words_and_marks
from marft.common.texts import storable
from marft.config.parts import MemoryPart

KEY_CHARACTERS = 200


class Store:
    """Memory store with serialized calls and recorded costs.

    Args:
        longest: maximum bytes per text. Longer text is cut, and the result says so.
        clock: returns the time in nanoseconds.
    """

    def __init__(self, memory: Memory, longest: int, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.memory, self.longest, self.clock = memory, longest, clock
        self.costs = Ledger()
        self._turn = asyncio.Lock()

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.memory.size

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Add entries; an entry without text is ignored."""
        async with self._turn:
            began = self.clock()
            taken = [Entry(self._short(entry.text), plain_key(entry.key), entry.kind) for entry in entries]
            work = await self.memory.write([entry for entry in taken if entry.text.strip()])
            if any(short.text != storable(entry.text) for short, entry in zip(taken, entries, strict=True)):
                work += Work(said=f"A text has at most {self.longest} bytes: the rest was cut.")
            self.costs.book("write", Cost.of(work, self.clock() - began))
            return work

    async def read(self, query: str, budget: int) -> Recall:
        """Return texts relevant to a query, within ``budget`` tokens."""
        async with self._turn:
            began = self.clock()
            recall = await self.memory.read(self._short(query), max(budget, 0))
            self.costs.book("read", Cost.of(recall.work, self.clock() - began))
            return recall

    async def forget(self, key: str) -> Forgotten:
        """Remove all entries with a key; the cost counts as writing."""
        async with self._turn:
            began = self.clock()
            found = await self.memory.forget(plain_key(key))
            self.costs.book("write", Cost.of(found.work, self.clock() - began))
            return found

    def _short(self, text: str) -> str:
        return storable(text).encode()[: self.longest].decode(errors="ignore")


def open_store(
    part: MemoryPart, count: Counter = words_and_marks, clock: Callable[[], int] = time.perf_counter_ns
) -> Store:
    """Return an empty memory of a system, with its construction mode.

    Args:
        count: returns the number of tokens in a text.
    """
    memory = cast("System", part).begin(count)
    if part.construction != "eager":
        memory = Deferred(memory, part.batch if part.construction == "batched" else 0, part.waiting_room)
    return Store(memory, part.longest, clock)


def plain_key(key: str) -> str:
    """Return a key in its stored form: lower case, single spaces, at most 200 characters.

    >>> plain_key("  Ann's\\nCAT ")
    "ann's cat"
    """
    return " ".join(storable(key).casefold().split())[:KEY_CHARACTERS].rstrip()
