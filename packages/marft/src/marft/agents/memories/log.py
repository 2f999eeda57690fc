"""Raw log memory."""

from __future__ import annotations

from collections.abc import Sequence

from marft.agents.memories.interface import Counter
from marft.agents.memories.shelf import Shelf, Shelved
from marft.config.parts import MemoryPart


class Log(MemoryPart):
    """Verbatim log. A read returns the newest entries that fit, whatever the query. Nothing is replaced: old facts
    stay before new ones.
    """

    def begin(self, count: Counter) -> LogMemory:
        """Return an empty memory."""
        return LogMemory(Shelf(self.room, self.working, replaces=False), count)


class LogMemory(Shelved):
    """Log memory."""

    async def ranked(self, query: str) -> tuple[Sequence[int], int]:  # noqa: ARG002  the query is irrelevant
        """Return entry numbers, the newest first."""
        return self.shelf.newest_first(), 0
