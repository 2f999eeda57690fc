"""Deferred construction: entries are built into a memory at once, in batches, or at the next read."""

from __future__ import annotations

from collections.abc import Sequence

from marft.agents.memories.interface import Entry, Forgotten, Memory, Recall, Work
from marft.agents.memories.shelf import size_of


class Deferred:
    """Memory whose entries wait in a buffer before construction.

    With batches, a read does not find waiting entries: it sees the state after the last batch. Without batches, a
    read builds in all waiting entries first and takes the time for that. Entries whose construction fails stay in
    the buffer.

    Args:
        batch: number of entries per batch; 0 builds at each read.
        room: size limit of the buffer in bytes. A write that would exceed it builds in the waiting entries first.
    """

    def __init__(self, inner: Memory, batch: int, room: int) -> None:
        self.inner, self.batch, self.room = inner, batch, room
        self.waiting, self._bytes = list[Entry](), 0

    @property
    def size(self) -> int:
        """Size of the memory and the buffer in bytes."""
        return self.inner.size + self._bytes

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Add entries to the buffer, and build in full batches."""
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
        """Read from the memory; without batches, build in waiting entries first."""
        work = Work() if self.batch else await self._build()
        recall = await self.inner.read(query, budget)
        return Recall(recall.texts, work + recall.work)

    async def forget(self, key: str) -> Forgotten:
        """Forget a key in the buffer and the memory."""
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
