"""Summaries: selection or rewriting of many texts, with the keys of their sources."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable

from marft.agents.memories.interface import Entry, Kind, TokenCounter
from marft.agents.memories.keys import Keys, has_source, merge_keys
from marft.agents.memories.selection import word_set
from marft.common.texts import replace_surrogates


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
        ValueError: at the call, if the function does not return a list of texts.
    """

    async def summarize(lines: Sequence[SummaryLine], size: int, count: TokenCounter) -> list[SummaryLine]:  # noqa: ARG001
        """Summarize the lines with the function."""
        result = function([line.text for line in lines], size)
        texts = await result if isawaitable(result) else result
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"condense {name!r} must give a list of texts; it gave a {type(texts).__name__}")
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
