"""Running-summary memory."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from marft.agents.memories.condensing import Condense, Line, by_choice, by_function
from marft.agents.memories.interface import Counter, Entry, Forgotten, Recall, Work
from marft.agents.memories.selection import Placed, fitting
from marft.agents.memories.shelf import ENTRY_BYTES, bytes_of
from marft.config.given import ImportPath
from marft.config.parts import MemoryPart
from marft.config.plugins import import_path
from marft.config.settings import Count


class Summary(MemoryPart):
    """Summary with at most ``tokens`` tokens, rewritten at each construction. A read returns the summary, whatever
    the query. Each line keeps the keys of all its sources, and is removed when one of these keys is forgotten.
    """

    tokens: Count = 200  # maximum tokens of the summary
    # import path of a function (texts, number of tokens) → fewer texts, optionally async; "" selects lines with rare
    # words
    condense: ImportPath = ""

    @field_validator("condense")
    @classmethod
    def _is_there(cls, path: str, info: ValidationInfo) -> str:
        if path and not callable(import_path(path, info.context)):
            raise PydanticCustomError("condense", "{path} is no function of texts", {"path": repr(path)})
        return path

    def begin(self, count: Counter) -> SummaryMemory:
        """Return an empty memory."""
        condense = by_function(import_path(self.condense), self.condense) if self.condense else by_choice
        return SummaryMemory(condense, count, self.tokens, self.room, self.working)


class SummaryMemory:
    """Summary lines, the oldest first."""

    def __init__(self, condense: Condense, count: Counter, tokens: int, capacity: int, working: int) -> None:
        self.condense, self.count, self.tokens, self.capacity, self.working = condense, count, tokens, capacity, working
        self.lines = list[Line]()

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(map(_size, self.lines))

    @property
    def text(self) -> str:
        """The summary, one line per source or derived text."""
        return "\n".join(line.text for line in self.lines)

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Add entries and rewrite the summary."""
        lines = list(self.lines)
        for entry in entries:
            lines = [line for line in lines if not line.made_old_by(entry)]
            lines.append(Line.of(entry))
        read = self.count("\n".join(line.text for line in lines))
        short = await self.condense(self._without_old_work(lines), self.tokens, self.count)
        self.lines = self._bounded(short)
        said = self.text
        return Work(read + self.count(said), bytes_of(said))

    def outdate(self, entry: Entry) -> None:
        """Remove the lines that a new entry replaces."""
        self.lines = [line for line in self.lines if not line.made_old_by(entry)]

    async def read(self, query: str, budget: int) -> Recall:  # noqa: ARG002  one text for all queries
        """Return the newest summary lines within a token budget."""
        placed = [Placed(number, line.text) for number, line in enumerate(self.lines)]
        working = [one for one in placed if self.lines[one.number].kind == "working"]
        rest = [one for one in placed if self.lines[one.number].kind != "working"]
        texts = fitting([*reversed(working), *reversed(rest)], budget, self.count)
        return Recall(texts, Work(self.count("\n".join(texts)), bytes_of(self.text)))

    async def forget(self, key: str) -> Forgotten:
        """Remove all lines derived from a key's entries."""
        before, self.lines = self.lines, [line for line in self.lines if not line.made_of(key)]
        return Forgotten(len(before) - len(self.lines))

    def _without_old_work(self, lines: Sequence[Line]) -> list[Line]:
        working = [place for place, line in enumerate(lines) if line.kind == "working"]
        old = set(working[: -self.working])
        return [line for place, line in enumerate(lines) if place not in old]

    def _bounded(self, lines: Sequence[Line]) -> list[Line]:
        """Return the longest suffix of the lines within the token and byte limits."""
        kept, room = list(lines), self.capacity - sum(map(_size, lines))
        while kept and (room < 0 or self.count("\n".join(line.text for line in kept)) > self.tokens):
            room += _size(kept.pop(0))
        return kept


def _size(line: Line) -> int:
    return ENTRY_BYTES + bytes_of(line.text) + sum(map(bytes_of, line.keys))
