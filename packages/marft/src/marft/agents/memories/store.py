"""Memory store for agents: accepts any text, and records the cost of each call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import cast

from marft.agents.memories.costs import Cost, CostTracker
from marft.agents.memories.deferred import DeferredMemory
from marft.agents.memories.interface import Entry, ForgetResult, Memory, MemorySystem, ReadResult, TokenCounter, Work
from marft.agents.memories.selection import count_words
from marft.common.texts import replace_surrogates
from marft.config.plugin_types import MemoryPart

MAX_KEY_CHARACTERS = 200


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
    def size(self) -> int:
        """Size in bytes."""
        return self.memory.size

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
    part: MemoryPart, count: TokenCounter = count_words, clock: Callable[[], int] = time.perf_counter_ns
) -> MemoryStore:
    """Return an empty memory of a system, with its construction mode.

    Args:
        count: returns the number of tokens in a text.
    """
    memory = cast("MemorySystem", part).begin(count)
    if part.construction != "eager":
        memory = DeferredMemory(memory, part.batch_size if part.construction == "batched" else 0, part.pending_bytes)
    return MemoryStore(memory, part.max_text_bytes, clock)


def normalize_key(key: str) -> str:
    """Return a key in its stored form: lower case, single spaces, at most 200 characters.

    >>> normalize_key("  Ann's\\nCAT ")
    "ann's cat"
    """
    return " ".join(replace_surrogates(key).casefold().split())[:MAX_KEY_CHARACTERS].rstrip()
