"""Summaries: selection or rewriting of many texts, with the keys of their sources."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable

from marft.agents.memories.interface import Counter, Entry, Kind
from marft.agents.memories.keys import Keys, made_of, merged
from marft.agents.memories.selection import words_of
from marft.common.texts import storable


@dataclass(frozen=True, slots=True)
class Line:
    """Summary line with its source entries' keys."""

    text: str
    keys: Keys
    kind: Kind

    @classmethod
    def of(cls, entry: Entry) -> Line:
        """Return an entry as a line."""
        return cls(entry.text, frozenset([entry.key]), entry.kind)

    def made_of(self, key: str) -> bool:
        """Return true if an entry with this key contributed to the line."""
        return made_of(self.keys, key)

    def made_old_by(self, entry: Entry) -> bool:
        """Return true if the line is a single earlier entry that ``entry`` replaces."""
        return self.keys == {entry.key} and entry.replaces(Entry("", entry.key, self.kind))


Condense = Callable[[Sequence[Line], int, Counter], Awaitable[list[Line]]]


async def by_choice(lines: Sequence[Line], size: int, count: Counter) -> list[Line]:
    """Return the most informative lines, in order, within ``size`` tokens.

    A line with a key ranks above a line without. Lines of equal rank compare by the rarity of their words: the mean
    over a line's words of 1 / (number of lines that contain the word). Ties go to the newer line. OUR READING of an
    extractive summary.
    """
    tally = Tally(word for line in lines for word in words_of(line.text))

    def worth(place: int) -> tuple[bool, float, int]:
        """Return the sort key of a line."""
        words = words_of(lines[place].text)
        rarity = sum(1 / tally[word] for word in sorted(words)) / len(words) if words else 0.0
        return bool(lines[place].keys - {""}), rarity, place

    costs = [count(line.text) + count("\n") for line in lines]
    kept, total = set(range(len(lines))), sum(costs)
    for place in sorted(range(len(lines)), key=worth):
        if total <= size:
            break
        kept.remove(place)
        total -= costs[place]
    return [lines[place] for place in sorted(kept)]


def by_function(function: Callable[[Sequence[str], int], object], name: str) -> Condense:
    """Return a summarizer that calls a user function.

    The function receives the texts and a token budget. It returns fewer texts, or a coroutine that does.

    Raises:
        ValueError: at the call, if the function does not return a list of texts.
    """

    async def condense(lines: Sequence[Line], size: int, count: Counter) -> list[Line]:  # noqa: ARG001
        """Summarize the lines with the function."""
        given = function([line.text for line in lines], size)
        texts = await given if isawaitable(given) else given
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"condense {name!r} must give a list of texts; it gave a {type(texts).__name__}")
        return whose(lines, [storable(text) for text in texts])

    return condense


def whose(lines: Sequence[Line], texts: Sequence[str]) -> list[Line]:
    """Return summary lines with source keys, given the source lines and the new texts.

    A text that equals a source line keeps its keys, including those of equal lines. Any other text may come from
    all lines, so it gets every key.

    >>> ann = Line("Ann's cat is red.", frozenset(["ann"]), "factual")
    >>> bea = Line("Bea left.", frozenset(["bea"]), "factual")
    >>> [sorted(line.keys) for line in whose([ann, bea], ["Bea left.", "Two people."])]
    [['bea'], ['ann', 'bea']]
    >>> [sorted(line.keys) for line in whose([ann, Line(ann.text, frozenset(["cat"]), "factual")], [ann.text])]
    [['ann', 'cat']]
    """
    known = dict[str, Line]()
    for line in lines:
        twin = known.get(line.text)
        known[line.text] = replace(line, keys=merged([twin.keys, line.keys])) if twin else line
    every = merged(line.keys for line in lines)
    return [known.get(text) or Line(text, every, "factual") for text in texts if text.strip()]
