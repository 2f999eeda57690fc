"""Hierarchical memory: recent entries verbatim, then a searchable archive, then a summary of the archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Annotated

from pydantic import Field

from marft.agents.memories.buffered import EntryBuffer, entry_size, utf8_size
from marft.agents.memories.index import IndexMemory, VectorMemory
from marft.agents.memories.selection import NumberedText, select_fitting
from marft.agents.memories.summary import SummaryMemory, select_lines
from marft.config.interfaces.memory import Entry, ForgetResult, ReadResult, TokenCounter, Work
from marft.config.settings import Count

RECENT_SHARE, SUMMARY_SHARE = 4, 8  # the recent level has 1/4 of the bytes, the summary 1/8; the archive has the rest


RankedText = tuple[int, int, str]  # (level, number in the level, text)


class Hierarchical(VectorMemory):
    """Memory with three levels, after MemGPT. The last entries stay verbatim. Earlier entries move to an archive
    with nearest-neighbor search, and a summary covers the archive. A read alternates between recent and found
    entries; the summary gets the rest of the budget. OUR READING: in MemGPT, the model itself decides which entries
    move down.
    """

    max_recent: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=4, description="maximum entries in the recent level"
    )
    summary_tokens: Count = Field(default=40, description="maximum tokens of the summary")

    def create_memory(self, count: TokenCounter) -> HierarchicalMemory:
        """Return an empty memory."""
        first, last = self.entry_bytes // RECENT_SHARE, self.entry_bytes // SUMMARY_SHARE
        rest = self.entry_bytes - first - last
        archive = EntryBuffer(rest, self.max_working_entries, self.overwrite, extra_bytes=self.vector_bytes)
        return HierarchicalMemory(
            EntryBuffer(first, self.max_working_entries, self.overwrite),
            IndexMemory(archive, count, self.build_embedder(), self.dimensions, self.top_k),
            SummaryMemory(select_lines, count, self.summary_tokens, last, self.max_working_entries),
            count,
            self.max_recent,
        )


class HierarchicalMemory:
    """Memory with three levels: an entry that moves down leaves the recent level for the archive and the summary."""

    def __init__(
        self, recent: EntryBuffer, archive: IndexMemory, summary: SummaryMemory, count: TokenCounter, max_recent: int
    ) -> None:
        self.recent, self.archive, self.summary = recent, archive, summary
        self.count, self.max_recent = count, max_recent

    @property
    def size_bytes(self) -> int:
        """Total size in bytes."""
        return self.recent.size + self.archive.size_bytes + self.summary.size_bytes

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Add entries to the recent level and move the oldest down."""
        before = self.recent.copy()
        try:
            return await self._write_entries(entries)
        except BaseException:  # entries that could not move down stay recent, and the new entries can be written again
            self.recent = before
            raise

    async def _write_entries(self, entries: Sequence[Entry]) -> Work:
        work, down = Work(), list[Entry]()
        for entry in entries:
            if self.recent.replaces:
                self.archive.remove_replaced(entry)
                self.summary.remove_replaced(entry)
                down = [moved for moved in down if not entry.replaces(moved)]
            down += self._make_room(entry)
            self.recent.add(entry)
            work += Work(self.count(entry.text), utf8_size(entry.text) + utf8_size(entry.key))
        if down:
            work += await self.archive.write(down)
            work += await self.summary.write(down)
        return work

    def _make_room(self, entry: Entry) -> list[Entry]:
        """Remove and return the oldest recent entries, to make room for a new one.

        Working entries have places of their own. An entry that the new one replaces is dropped and not returned.
        """
        for number in self.recent.find_replaced(entry):
            self.recent.pop(number)
        old = [number for number, recent_entry in self.recent.entries.items() if recent_entry.kind != "working"]
        places = self.max_recent - (entry.kind != "working")
        down = list[Entry]()
        while old and (len(old) > places or self.recent.size + entry_size(entry) > self.recent.capacity):
            down.append(self.recent.pop(old.pop(0)))
        return down

    async def read(self, query: str, budget: int) -> ReadResult:
        """Return texts from all levels within a token budget, the oldest first."""
        archive_numbers, looked_at = await self.archive.rank(query)
        recent_entries, below = self.recent.entries, self.archive.buffer.entries
        recent = [(2, number, recent_entries[number].text) for number in self.recent.newest_first()]
        working = sum(entry.kind == "working" for entry in recent_entries.values())
        archive_texts = [(1, number, below[number].text) for number in archive_numbers[: self.archive.max_texts]]
        summary_lines = [(0, number, line.text) for number, line in reversed(list(enumerate(self.summary.lines)))]
        ranked = [*recent[:working], *_interleave(recent[working:], archive_texts)]
        ranked_texts = {text for _, _, text in ranked}
        ranked += [item for item in summary_lines if item[2] not in ranked_texts]
        order = {item[:2]: place for place, item in enumerate(sorted(ranked))}
        texts = select_fitting([NumberedText(order[item[:2]], item[2]) for item in ranked], budget, self.count)
        looked_at += utf8_size("\n".join(texts)) + utf8_size(self.summary.text)
        return ReadResult(texts, Work(self.count("\n".join(texts)), looked_at))

    async def forget(self, key: str) -> ForgetResult:
        """Remove a key from all levels."""
        below = await self.archive.forget(key), await self.summary.forget(key)
        return ForgetResult(len(self.recent.remove_key(key)) + sum(result.count for result in below))


def _interleave(first: Sequence[RankedText], second: Sequence[RankedText]) -> Iterator[RankedText]:
    """Alternate between two sequences."""
    return (item for pair in zip_longest(first, second) for item in pair if item is not None)
