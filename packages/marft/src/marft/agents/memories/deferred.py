"""When what is written is built in: at once, many entries together, or when somebody reads."""

from __future__ import annotations

from collections.abc import Sequence

from marft.agents.memories.interface import Entry, Forgotten, Memory, Recall, Work
from marft.agents.memories.shelf import size_of


class Deferred:
    """A memory whose entries wait before they are built into another one.

    Where many are built in together, those that wait are not found: a read is as old as the last batch. Where the first
    read builds, it finds all, and has all the work. What fails to be built in goes on waiting.

    Args:
        batch: entries that are built in together; 0: a read builds in what there is.
        room: bytes of what waits; before there are more it is built in.
    """

    def __init__(self, inner: Memory, batch: int, room: int) -> None:
        self.inner, self.batch, self.room = inner, batch, room
        self.waiting, self._bytes = list[Entry](), 0

    @property
    def size(self) -> int:
        return self.inner.size + self._bytes

    async def write(self, entries: Sequence[Entry]) -> Work:
        work = Work()
        for entry in entries:
            if self._bytes + size_of(entry) > self.room:
                work += await self._build()
            self.waiting.append(entry)
            self._bytes += size_of(entry)
            if 0 < self.batch <= len(self.waiting):
                work += await self._build()
        return work

    async def read(self, query: str, budget: int) -> Recall:
        work = Work() if self.batch else await self._build()
        recall = await self.inner.read(query, budget)
        return Recall(recall.texts, work + recall.work)

    async def forget(self, key: str) -> Forgotten:
        kept = [entry for entry in self.waiting if entry.key != key]
        waited, self.waiting = len(self.waiting) - len(kept), kept
        self._bytes = sum(map(size_of, kept))
        found = await self.inner.forget(key)
        return Forgotten(found.count + waited, found.work)

    async def _build(self) -> Work:
        if not self.waiting:
            return Work()
        work = await self.inner.write(tuple(self.waiting))
        self.waiting, self._bytes = [], 0
        return work
