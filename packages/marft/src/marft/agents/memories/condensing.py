"""Summaries: what of many texts is kept, and whose it is."""

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
    """A line of a summary, and the keys of all that it was made of."""

    text: str
    keys: Keys
    kind: Kind

    @classmethod
    def of(cls, entry: Entry) -> Line:
        """An entry as it stands."""
        return cls(entry.text, frozenset([entry.key]), entry.kind)

    def made_of(self, key: str) -> bool:
        """Whether something of that key went into it."""
        return made_of(self.keys, key)

    def made_old_by(self, entry: Entry) -> bool:
        """Whether it is an earlier entry whose place a new one takes, and nothing else."""
        return self.keys == {entry.key} and entry.replaces(Entry("", entry.key, self.kind))


Condense = Callable[[Sequence[Line], int, Counter], Awaitable[list[Line]]]


async def by_choice(lines: Sequence[Line], size: int, count: Counter) -> list[Line]:
    """The lines that say most, in their order, of at most so many tokens.

    A line with a key says more than one without; of two of a kind, the one whose words are rarer here, by the mean
    over its words of 1 / the number of lines that have the word; of equals the newer one. OUR READING of an extractive
    summary.
    """
    tally = Tally(word for line in lines for word in words_of(line.text))

    def worth(place: int) -> tuple[bool, float, int]:
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
    """Condenses by a function of texts and a number of tokens that gives fewer texts, or a coroutine of them."""

    async def condense(lines: Sequence[Line], size: int, count: Counter) -> list[Line]:  # noqa: ARG001
        given = function([line.text for line in lines], size)
        texts = await given if isawaitable(given) else given
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"condense {name!r} must give a list of texts; it gave a {type(texts).__name__}")
        return whose(lines, [storable(text) for text in texts])

    return condense


def whose(lines: Sequence[Line], texts: Sequence[str]) -> list[Line]:
    """Lines of what somebody made of others: one that stood there before keeps its keys, and those of lines that say
    the same; any other may be of all.

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
