"""Raw log memory."""

from __future__ import annotations

from collections.abc import Sequence

from marft.agents.memories.entry_buffer import BufferedMemory, EntryBuffer
from marft.agents.memories.interface import TokenCounter
from marft.config.plugin_types import MemoryPart


class Log(MemoryPart):
    """Verbatim log. A read returns the newest entries that fit, whatever the query. Nothing is replaced: old facts
    stay before new ones.
    """

    def begin(self, count: TokenCounter) -> LogMemory:
        """Return an empty memory."""
        return LogMemory(EntryBuffer(self.entry_bytes, self.max_working_entries, replaces=False), count)


class LogMemory(BufferedMemory):
    """Log memory."""

    async def rank(self, query: str) -> tuple[Sequence[int], int]:  # noqa: ARG002  the query is irrelevant
        """Return entry numbers, the newest first."""
        return self.buffer.newest_first(), 0
