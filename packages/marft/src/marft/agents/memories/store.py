"""Memory store for agents: accepts any text, builds it in at once or later, and records the cost of each call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from marft.agents.memories.buffered import entry_size
from marft.agents.memories.selection import count_words
from marft.common.texts import replace_surrogates
from marft.config.interfaces.memory import Entry, ForgetResult, Memory, MemorySystem, ReadResult, TokenCounter, Work

Path = Literal["write", "read"]
MAX_KEY_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs in integers, so that sums are exact in any order."""

    calls: int = 0
    tokens: int = 0
    bytes: int = 0
    nanoseconds: int = 0

    @classmethod
    def from_work(cls, work: Work, nanoseconds: int) -> Cost:
        """Return one call's cost."""
        return cls(1, work.tokens, work.bytes, nanoseconds)

    @property
    def ms(self) -> float:
        """Time in milliseconds."""
        return self.nanoseconds / 1e6

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.bytes + other.bytes,
            self.nanoseconds + other.nanoseconds,
        )


class CostTracker:
    """Costs by path.

    A cost belongs to the call that waits for the work: entries built in by a read count as a cost of reading.
    """

    def __init__(self) -> None:
        self.write = self.read = self.total = Cost()

    def add(self, path: Path, cost: Cost) -> None:
        """Add the cost of a call."""
        self.total += cost
        if path == "write":
            self.write += cost
        else:
            self.read += cost


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
    def size_bytes(self) -> int:
        """Size of the memory and the buffer in bytes."""
        return self.memory.size_bytes + self._bytes

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


class MemoryStore:
    """Memory store with serialized calls and recorded costs.

    Args:
        max_text_bytes: maximum bytes per text. Longer text is cut, and the result says so.
        clock: returns the time in nanoseconds.
    """

    def __init__(self, memory: Memory, max_text_bytes: int, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.memory, self.max_text_bytes, self.clock = memory, max_text_bytes, clock
        self.costs = CostTracker()
        self._lock = asyncio.Lock()

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        return self.memory.size_bytes

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Add entries; an entry without text is ignored."""
        async with self._lock:
            start_time = self.clock()
            stored = [Entry(self._truncate(entry.text), normalize_key(entry.key), entry.kind) for entry in entries]
            work = await self.memory.write([entry for entry in stored if entry.text.strip()])
            if any(short.text != replace_surrogates(entry.text) for short, entry in zip(stored, entries, strict=True)):
                work += Work(message=f"A text has at most {self.max_text_bytes} bytes: the rest was cut.")
            self.costs.add("write", Cost.from_work(work, self.clock() - start_time))
            return work

    async def read(self, query: str, budget: int) -> ReadResult:
        """Return texts relevant to a query, within ``budget`` tokens."""
        async with self._lock:
            start_time = self.clock()
            recall = await self.memory.read(self._truncate(query), max(budget, 0))
            self.costs.add("read", Cost.from_work(recall.work, self.clock() - start_time))
            return recall

    async def forget(self, key: str) -> ForgetResult:
        """Remove all entries with a key; the cost counts as writing."""
        async with self._lock:
            start_time = self.clock()
            result = await self.memory.forget(normalize_key(key))
            self.costs.add("write", Cost.from_work(result.work, self.clock() - start_time))
            return result

    def _truncate(self, text: str) -> str:
        return replace_surrogates(text).encode()[: self.max_text_bytes].decode(errors="ignore")


def open_store(
    part: MemorySystem, count: TokenCounter = count_words, clock: Callable[[], int] = time.perf_counter_ns
) -> MemoryStore:
    """Return an empty memory of a system, with its construction mode.

    Args:
        count: returns the number of tokens in a text.
    """
    memory = part.create_memory(count)
    if part.construction != "eager":
        memory = DeferredMemory(memory, part.batch_size if part.construction == "batched" else 0, part.pending_bytes)
    return MemoryStore(memory, part.max_text_bytes, clock)


def normalize_key(key: str) -> str:
    """Return a key in its stored form: lower case, single spaces, at most 200 characters.

    >>> normalize_key("  Ann's\\nCAT ")
    "ann's cat"
    """
    return " ".join(replace_surrogates(key).casefold().split())[:MAX_KEY_CHARACTERS].rstrip()
