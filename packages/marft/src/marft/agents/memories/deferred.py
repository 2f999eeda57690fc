"""Deferred construction: entries are built into a memory at once, in batches, or at the next read."""

from __future__ import annotations

from collections.abc import Sequence

from marft.agents.memories.entry_buffer import entry_size
from marft.agents.memories.interface import Entry, ForgetResult, Memory, ReadResult, Work


class DeferredMemory:
    """Memory whose entries wait in a buffer before construction.

    With batches, a read does not find waiting entries: it sees the state after the last batch. Without batches, a
    read builds in all waiting entries first and takes the time for that. Entries whose construction fails stay in
    the buffer.

    Args:
        batch: number of entries per batch; 0 builds at each read.
        room: size limit of the buffer in bytes. A write that would exceed it builds in the waiting entries first.
    """

    def __init__(self, inner: Memory, batch: int, room: int) -> None:
        self.memory, self.batch, self.room = inner, batch, room
        self.pending, self._bytes = list[Entry](), 0

    @property
    def size(self) -> int:
        """Size of the memory and the buffer in bytes."""
        return self.memory.size + self._bytes

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Add entries to the buffer, and build in full batches."""
        work = Work()
        for entry in entries:
            if self._bytes + entry_size(entry) > self.room:
                work += await self._build()
            self.pending.append(entry)
            self._bytes += entry_size(entry)
            if 0 < self.batch <= len(self.pending):
                work += await self._build()
        return work

    async def read(self, query: str, budget: int) -> ReadResult:
        """Read from the memory; without batches, build in waiting entries first."""
        work = Work() if self.batch else await self._build()
        recall = await self.memory.read(query, budget)
        return ReadResult(recall.texts, work + recall.work)

    async def forget(self, key: str) -> ForgetResult:
        """Forget a key in the buffer and the memory."""
        remaining = [entry for entry in self.pending if entry.key != key]
        waited, self.pending = len(self.pending) - len(remaining), remaining
        self._bytes = sum(map(entry_size, remaining))
        result = await self.memory.forget(key)
        return ForgetResult(result.count + waited, result.work)

    async def _build(self) -> Work:
        if not self.pending:
            return Work()
        work = await self.memory.write(tuple(self.pending))
        self.pending, self._bytes = [], 0
        return work
