"""Running-summary memory: selection or rewriting of many texts, with the keys of their sources."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable

from pydantic import Field

from marft.agents.memories.buffered import ENTRY_BYTES, utf8_size
from marft.agents.memories.selection import Keys, NumberedText, has_source, merge_keys, select_fitting, word_set
from marft.common.errors import UserError
from marft.common.texts import replace_surrogates
from marft.config.interfaces.memory import Entry, ForgetResult, Kind, MemorySystem, ReadResult, TokenCounter, Work
from marft.config.plugins import FunctionPath, import_object
from marft.config.settings import Count


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """Summary line with its source entries' keys."""

    text: str
    keys: Keys
    kind: Kind

    @classmethod
    def from_entry(cls, entry: Entry) -> SummaryLine:
        """Return an entry as a line."""
        return cls(entry.text, frozenset([entry.key]), entry.kind)

    def has_source(self, key: str) -> bool:
        """Return true if an entry with this key contributed to the line."""
        return has_source(self.keys, key)

    def is_replaced_by(self, entry: Entry) -> bool:
        """Return true if the line is a single earlier entry that ``entry`` replaces."""
        return self.keys == {entry.key} and entry.replaces(Entry("", entry.key, self.kind))


Summarize = Callable[[Sequence[SummaryLine], int, TokenCounter], Awaitable[list[SummaryLine]]]


async def select_lines(lines: Sequence[SummaryLine], size: int, count: TokenCounter) -> list[SummaryLine]:
    """Return the most informative lines, in order, within ``size`` tokens.

    A line with a key ranks above a line without. Lines of equal rank compare by the rarity of their words: the mean
    over a line's words of 1 / (number of lines that contain the word). Ties go to the newer line. OUR READING of an
    extractive summary.
    """
    word_counts = Tally(word for line in lines for word in word_set(line.text))

    def rank(place: int) -> tuple[bool, float, int]:
        """Return the sort key of a line."""
        words = word_set(lines[place].text)
        mean_weight = sum(1 / word_counts[word] for word in sorted(words)) / len(words) if words else 0.0
        return bool(lines[place].keys - {""}), mean_weight, place

    costs = [count(line.text) + count("\n") for line in lines]
    selected, total = set(range(len(lines))), sum(costs)
    for place in sorted(range(len(lines)), key=rank):
        if total <= size:
            break
        selected.remove(place)
        total -= costs[place]
    return [lines[place] for place in sorted(selected)]


def summarize_with(function: Callable[[Sequence[str], int], object], name: str) -> Summarize:
    """Return a summarizer that calls a user function.

    The function receives the texts and a token budget. It returns fewer texts, or a coroutine that does.

    Raises:
        UserError: at the call, if the function does not return a list of texts.
    """

    async def summarize(lines: Sequence[SummaryLine], size: int, count: TokenCounter) -> list[SummaryLine]:  # noqa: ARG001
        """Summarize the lines with the function."""
        result = function([line.text for line in lines], size)
        texts = await result if isawaitable(result) else result
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise UserError(f"summarizer {name!r} must give a list of texts; it gave a {type(texts).__name__}")
        return assign_keys(lines, [replace_surrogates(text) for text in texts])

    return summarize


def assign_keys(lines: Sequence[SummaryLine], texts: Sequence[str]) -> list[SummaryLine]:
    """Return summary lines with source keys, given the source lines and the new texts.

    A text that equals a source line keeps its keys, including those of equal lines. Any other text may come from
    all lines, so it gets every key.

    >>> ann = SummaryLine("Ann's cat is red.", frozenset(["ann"]), "factual")
    >>> bea = SummaryLine("Bea left.", frozenset(["bea"]), "factual")
    >>> [sorted(line.keys) for line in assign_keys([ann, bea], ["Bea left.", "Two people."])]
    [['bea'], ['ann', 'bea']]
    >>> cat = SummaryLine(ann.text, frozenset(["cat"]), "factual")
    >>> [sorted(line.keys) for line in assign_keys([ann, cat], [ann.text])]
    [['ann', 'cat']]
    """
    by_text = dict[str, SummaryLine]()
    for line in lines:
        equal_line = by_text.get(line.text)
        by_text[line.text] = replace(line, keys=merge_keys([equal_line.keys, line.keys])) if equal_line else line
    all_keys = merge_keys(line.keys for line in lines)
    return [by_text.get(text) or SummaryLine(text, all_keys, "factual") for text in texts if text.strip()]


class Summary(MemorySystem):
    """Summary with at most ``max_tokens`` tokens, rewritten at each construction. A read returns the summary, for every
    query. Each line keeps the keys of its sources; forgetting one of these keys removes the line.
    """

    max_tokens: Count = Field(default=200, description="maximum tokens of the summary")
    summarizer: FunctionPath = Field(
        default="",
        description=(
            'import path of a function (texts, number of tokens) → fewer texts, optionally async; "": lines with rare '
            "words"
        ),
    )

    def create_memory(self, count: TokenCounter) -> SummaryMemory:
        """Return an empty memory."""
        summarize = summarize_with(import_object(self.summarizer), self.summarizer) if self.summarizer else select_lines
        return SummaryMemory(summarize, count, self.max_tokens, self.entry_bytes, self.max_working_entries)


class SummaryMemory:
    """Summary lines, the oldest first."""

    def __init__(self, summarize: Summarize, count: TokenCounter, tokens: int, capacity: int, working: int) -> None:
        self.summarize, self.count, self.tokens = summarize, count, tokens
        self.capacity, self.working = capacity, working
        self.lines = list[SummaryLine]()

    @property
    def size_bytes(self) -> int:
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
