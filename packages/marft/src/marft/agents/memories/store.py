"""A memory as agents use it: whatever they write is taken, and what it costs is counted."""

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
    """A memory whose calls wait for each other and are booked.

    Args:
        longest: bytes of a text; more is cut, and said.
        clock: nanoseconds.
    """

    def __init__(self, memory: Memory, longest: int, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.memory, self.longest, self.clock = memory, longest, clock
        self.costs = Ledger()
        self._turn = asyncio.Lock()

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return self.memory.size

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Take entries in; those without a word are none."""
        async with self._turn:
            began = self.clock()
            taken = [Entry(self._short(entry.text), plain_key(entry.key), entry.kind) for entry in entries]
            work = await self.memory.write([entry for entry in taken if entry.text.strip()])
            if any(short.text != storable(entry.text) for short, entry in zip(taken, entries, strict=True)):
                work += Work(said=f"A text has at most {self.longest} bytes: the rest was cut.")
            self.costs.book("write", Cost.of(work, self.clock() - began))
            return work

    async def read(self, query: str, budget: int) -> Recall:
        """What helps with a question, in at most so many tokens."""
        async with self._turn:
            began = self.clock()
            recall = await self.memory.read(self._short(query), max(budget, 0))
            self.costs.book("read", Cost.of(recall.work, self.clock() - began))
            return recall

    async def forget(self, key: str) -> Forgotten:
        """Forget all that was written under a key: it belongs to the path of writing."""
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
    """An empty memory of a system, with its construction.

    Args:
        count: how many tokens a text has.
    """
    memory = cast("System", part).begin(count)
    if part.construction != "eager":
        memory = Deferred(memory, part.batch if part.construction == "batched" else 0, part.waiting_room)
    return Store(memory, part.longest, clock)


def plain_key(key: str) -> str:
    """A key as it is kept: in lower case, its spaces single, at most 200 characters.

    >>> plain_key("  Ann's\\nCAT ")
    "ann's cat"
    """
    return " ".join(storable(key).casefold().split())[:KEY_CHARACTERS].rstrip()
