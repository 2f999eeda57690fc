"""Running-summary memory."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from marft.agents.memories.entry_buffer import ENTRY_BYTES, utf8_size
from marft.agents.memories.interface import Entry, ForgetResult, ReadResult, TokenCounter, Work
from marft.agents.memories.selection import NumberedText, select_fitting
from marft.agents.memories.summarization import Summarize, SummaryLine, select_lines, summarize_with
from marft.config.plugin_types import MemoryPart
from marft.config.plugins import import_object
from marft.config.python_objects import ImportPath
from marft.config.settings import Count


class Summary(MemoryPart):
    """Summary with at most ``tokens`` tokens, rewritten at each construction. A read returns the summary, whatever
    the query. Each line keeps the keys of all its sources, and is removed when one of these keys is forgotten.
    """

    tokens: Count = 200  # maximum tokens of the summary
    # import path of a function (texts, number of tokens) → fewer texts, optionally async; "" selects lines with rare
    # words
    summarizer: ImportPath = ""

    @field_validator("summarizer")
    @classmethod
    def _check_summarizer(cls, path: str, info: ValidationInfo) -> str:
        if path and not callable(import_object(path, info.context)):
            raise PydanticCustomError("summarizer", "{path} is no function of texts", {"path": repr(path)})
        return path

    def begin(self, count: TokenCounter) -> SummaryMemory:
        """Return an empty memory."""
        summarize = summarize_with(import_object(self.summarizer), self.summarizer) if self.summarizer else select_lines
        return SummaryMemory(summarize, count, self.tokens, self.entry_bytes, self.max_working_entries)


class SummaryMemory:
    """Summary lines, the oldest first."""

    def __init__(self, summarize: Summarize, count: TokenCounter, tokens: int, capacity: int, working: int) -> None:
        self.summarize, self.count, self.tokens, self.capacity, self.working = (
            summarize,
            count,
            tokens,
            capacity,
            working,
        )
        self.lines = list[SummaryLine]()

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum(map(_line_size, self.lines))

    @property
    def text(self) -> str:
        """The summary, one line per source or derived text."""
        return "\n".join(line.text for line in self.lines)

    async def write(self, entries: Sequence[Entry]) -> Work:
        """Add entries and rewrite the summary."""
        lines = list(self.lines)
        for entry in entries:
            lines = [line for line in lines if not line.is_replaced_by(entry)]
            lines.append(SummaryLine.from_entry(entry))
        input_tokens = self.count("\n".join(line.text for line in lines))
        short = await self.summarize(self._drop_old_working(lines), self.tokens, self.count)
        self.lines = self._fit_limits(short)
        summary = self.text
        return Work(input_tokens + self.count(summary), utf8_size(summary))

    def remove_replaced(self, entry: Entry) -> None:
        """Remove the lines that a new entry replaces."""
        self.lines = [line for line in self.lines if not line.is_replaced_by(entry)]

    async def read(self, query: str, budget: int) -> ReadResult:  # noqa: ARG002  one text for all queries
        """Return the newest summary lines within a token budget."""
        numbered = [NumberedText(number, line.text) for number, line in enumerate(self.lines)]
        working = [line_text for line_text in numbered if self.lines[line_text.number].kind == "working"]
        others = [line_text for line_text in numbered if self.lines[line_text.number].kind != "working"]
        texts = select_fitting([*reversed(working), *reversed(others)], budget, self.count)
        return ReadResult(texts, Work(self.count("\n".join(texts)), utf8_size(self.text)))

    async def forget(self, key: str) -> ForgetResult:
        """Remove all lines derived from a key's entries."""
        before, self.lines = self.lines, [line for line in self.lines if not line.has_source(key)]
        return ForgetResult(len(before) - len(self.lines))

    def _drop_old_working(self, lines: Sequence[SummaryLine]) -> list[SummaryLine]:
        working = [place for place, line in enumerate(lines) if line.kind == "working"]
        old = set(working[: -self.working])
        return [line for place, line in enumerate(lines) if place not in old]

    def _fit_limits(self, lines: Sequence[SummaryLine]) -> list[SummaryLine]:
        """Return the longest suffix of the lines within the token and byte limits."""
        remaining, room = list(lines), self.capacity - sum(map(_line_size, lines))
        while remaining and (room < 0 or self.count("\n".join(line.text for line in remaining)) > self.tokens):
            room += _line_size(remaining.pop(0))
        return remaining


def _line_size(line: SummaryLine) -> int:
    return ENTRY_BYTES + utf8_size(line.text) + sum(map(utf8_size, line.keys))
