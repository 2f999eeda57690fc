"""A raw log."""

from __future__ import annotations

from collections.abc import Sequence

from marft.agents.memories.interface import Counter
from marft.agents.memories.shelf import Shelf, Shelved
from marft.config.parts import MemoryPart


class Log(MemoryPart):
    """All that was written, word for word; the newest that fits is read, whatever is asked. Nothing is replaced: old
    facts stand before new ones."""

    def begin(self, count: Counter) -> LogMemory:
        """An empty one."""
        return LogMemory(Shelf(self.room, self.working, replaces=False), count)


class LogMemory(Shelved):
    """The newest."""

    async def ranked(self, query: str) -> tuple[Sequence[int], int]:  # noqa: ARG002  it looks for nothing
        """Its entries from the newest on."""
        return self.shelf.newest_first(), 0
