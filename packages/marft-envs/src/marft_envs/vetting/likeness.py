"""How alike the texts of tasks are, beyond the words that most of them have."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from marft.common.types import Task
from marft_envs.vetting.loading import plain

WORDS = 3  # of a shingle
COMMON = 0.05  # share of the texts that have a shingle, from which on it says nothing
LEAST = 3  # shingles of a text that say something, without which nothing is said of it
TOKEN = re.compile(r"\w+|[^\w\s]")


def normal(text: str) -> str:
    """A text but for case and spacing.

    >>> normal(" Two\\n words ")
    'two words'
    """
    return " ".join(text.split()).casefold()


def whole(task: Task) -> str:
    """A task as its prompt and its data."""
    return f"{normal(task.prompt)}\n{normal(json.dumps(plain(task.data), default=str, sort_keys=True))}"


def shingles(text: str) -> set[str]:
    """Every few words in a row.

    >>> sorted(shingles("a b c d"))
    ['a b c', 'b c d']
    """
    words = TOKEN.findall(text)
    return {" ".join(words[at : at + WORDS]) for at in range(max(1, len(words) - WORDS + 1))}


def jaccard(one: set[str], other: set[str]) -> float:
    """``|A ∩ B| / |A ∪ B|``; 1 where both are empty.

    >>> jaccard({"a", "b"}, {"b", "c", "d"})
    0.25
    """
    return len(one & other) / len(one | other) if one or other else 1.0


@dataclass(frozen=True, slots=True)
class Likeness:
    """Texts that others are compared with.

    Args:
        sizes: of each text: the shingles that say something.
        index: by shingle, the texts that have it.
        common: shingles that many of them have: the words around them.
    """

    sizes: Sequence[int]
    index: dict[str, list[int]]
    common: frozenset[str]

    @staticmethod
    def of(texts: Sequence[str]) -> Likeness:
        """Of these texts."""
        shingled = list(map(shingles, texts))
        counts = Counter(shingle for some_of in shingled for shingle in some_of)
        common = frozenset(s for s, count in counts.items() if count > max(2, COMMON * len(shingled)))
        index: dict[str, list[int]] = defaultdict(list)
        for number, some_of in enumerate(shingled):
            for shingle in some_of - common:
                index[shingle].append(number)
        return Likeness([len(some_of - common) for some_of in shingled], dict(index), common)

    def nearest(self, text: str) -> tuple[int, float] | None:
        """The text that shares most shingles with this one, and the share of both that is shared; None where none
        shares any, or too few say something."""
        own = shingles(text) - self.common
        shared = Counter(number for shingle in own for number in self.index.get(shingle, ()))
        if len(own) < LEAST or not shared:
            return None
        number, count = shared.most_common(1)[0]
        return number, count / (len(own) + self.sizes[number] - count)
