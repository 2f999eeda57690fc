"""Hierarchical memory: recent entries verbatim, then a searchable archive, then a summary of the archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Annotated

from pydantic import Field

from marft.agents.memories.condensing import by_choice
from marft.agents.memories.index import IndexMemory, Searched
from marft.agents.memories.interface import Counter, Entry, Forgotten, Recall, Work
from marft.agents.memories.selection import Placed, fitting
from marft.agents.memories.shelf import Shelf, bytes_of, size_of
from marft.agents.memories.summary import SummaryMemory
from marft.config.settings import Count

RECENT_SHARE, GIST_SHARE = 4, 8  # the recent level has 1/4 of the bytes, the summary 1/8; the archive has the rest


Found = tuple[int, int, str]  # (level, number in the level, text)


class Hierarchical(Searched):
    """Memory with three levels, after MemGPT. The last entries stay verbatim. Earlier entries move to an archive
    with nearest-neighbor search, and a summary covers the archive. A read alternates between recent and found
    entries; the summary gets the rest of the budget. OUR READING: in MemGPT, the model itself decides which entries
    move down.
    """

    recent: Annotated[int, Field(ge=1, le=1000)] = 4  # maximum entries in the recent level
    summary_tokens: Count = 40  # maximum tokens of the summary

    def begin(self, count: Counter) -> HierarchicalMemory:
        """Return an empty memory."""
        first, last = self.room // RECENT_SHARE, self.room // GIST_SHARE
        archive = Shelf(self.room - first - last, self.working, self.replaces, each=self.vector_bytes)
        return HierarchicalMemory(
            Shelf(first, self.working, self.replaces),
            IndexMemory(archive, count, self.embedder(), self.dimensions, self.picks),
            SummaryMemory(by_choice, count, self.summary_tokens, last, self.working), count, self.recent,
        )  # fmt: skip


class HierarchicalMemory:
    """Memory with three levels: an entry that moves down leaves the recent level for the archive and the summary."""

    def __init__(self, recent: Shelf, archive: IndexMemory, gist: SummaryMemory, count: Counter, most: int) -> None:
        self.recent, self.archive, self.gist, self.count, self.most = recent, archive, gist, count, most

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return self.recent.size + self.archive.size + self.gist.size

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Add entries to the recent level and move the oldest down."""
        before = self.recent.copy()
        try:
            return await self._written(entries)
        except BaseException:  # entries that could not move down stay recent, and the new entries can be written again
            self.recent = before
            raise

    async def _written(self, entries: Sequence[Entry]) -> Work:
        work, down = Work(), list[Entry]()
        for entry in entries:
            if self.recent.replaces:
                self.archive.outdate(entry)
                self.gist.outdate(entry)
                down = [other for other in down if not entry.replaces(other)]
            down += self._room_for(entry)
            self.recent.put(entry)
            work += Work(self.count(entry.text), bytes_of(entry.text) + bytes_of(entry.key))
        if down:
            work += await self.archive.write(down)
            work += await self.gist.write(down)
        return work

    def _room_for(self, entry: Entry) -> list[Entry]:
        """Remove and return the oldest recent entries, to make room for a new one.

        Working entries have places of their own. An entry that the new one replaces is dropped and not returned.
        """
        for number in self.recent.outdated(entry):
            self.recent.take(number)
        old = [number for number, one in self.recent.held.items() if one.kind != "working"]
        places = self.most - (entry.kind != "working")
        down = list[Entry]()
        while old and (len(old) > places or self.recent.size + size_of(entry) > self.recent.capacity):
            down.append(self.recent.take(old.pop(0)))
        return down

    async def read(self, query: str, budget: int) -> Recall:
        """Return texts from all levels within a token budget, the oldest first."""
        found, looked_at = await self.archive.ranked(query)
        held, below = self.recent.held, self.archive.shelf.held
        recent = [(2, number, held[number].text) for number in self.recent.newest_first()]
        working = sum(entry.kind == "working" for entry in held.values())
        archived = [(1, number, below[number].text) for number in found[: self.archive.most]]
        gist = [(0, number, line.text) for number, line in reversed(list(enumerate(self.gist.lines)))]
        ranked = [*recent[:working], *_in_turns(recent[working:], archived)]
        known = {text for _, _, text in ranked}
        ranked += [one for one in gist if one[2] not in known]
        order = {one[:2]: place for place, one in enumerate(sorted(ranked))}
        texts = fitting([Placed(order[one[:2]], one[2]) for one in ranked], budget, self.count)
        looked_at += bytes_of("\n".join(texts)) + bytes_of(self.gist.text)
        return Recall(texts, Work(self.count("\n".join(texts)), looked_at))

    async def forget(self, key: str) -> Forgotten:
        """Remove a key from all levels."""
        below = await self.archive.forget(key), await self.gist.forget(key)
        return Forgotten(len(self.recent.drop(key)) + sum(one.count for one in below))


def _in_turns(first: Sequence[Found], second: Sequence[Found]) -> Iterator[Found]:
    """Alternate between two sequences."""
    return (one for pair in zip_longest(first, second) for one in pair if one is not None)
