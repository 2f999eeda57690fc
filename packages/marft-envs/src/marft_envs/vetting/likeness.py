"""Text similarity between tasks, without shingles that most tasks share."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from marft.common.types import Task
from marft_envs.vetting.loading import plain

WORDS = 3  # words per shingle
COMMON = 0.05  # share of texts above which a shingle is too common to count
LEAST = 3  # minimum distinctive shingles of a text; shorter texts are skipped
TOKEN = re.compile(r"\w+|[^\w\s]")


def normal(text: str) -> str:
    """Normalize case and spacing.

    >>> normal(" Two\\n words ")
    'two words'
    """
    return " ".join(text.split()).casefold()


def whole(task: Task) -> str:
    """Return a task's prompt and data as text."""
    return f"{normal(task.prompt)}\n{normal(json.dumps(plain(task.data), default=str, sort_keys=True))}"


def shingles(text: str) -> set[str]:
    """Return the shingles in a text: each run with three words.

    >>> sorted(shingles("a b c d"))
    ['a b c', 'b c d']
    """
    words = TOKEN.findall(text)
    return {" ".join(words[at : at + WORDS]) for at in range(max(1, len(words) - WORDS + 1))}


def jaccard(one: set[str], other: set[str]) -> float:
    """Return ``|A ∩ B| / |A ∪ B|``; 1 if both sets are empty.

    >>> jaccard({"a", "b"}, {"b", "c", "d"})
    0.25
    """
    return len(one & other) / len(one | other) if one or other else 1.0


@dataclass(frozen=True, slots=True)
class Likeness:
    """Index for near-duplicate search.

    Args:
        sizes: number of distinctive shingles of each text.
        index: indices of texts by shingle.
        common: shingles that many texts share.
    """

    sizes: Sequence[int]
    index: dict[str, list[int]]
    common: frozenset[str]

    @staticmethod
    def of(texts: Sequence[str]) -> Likeness:
        """Build an index from texts."""
        shingled = list(map(shingles, texts))
        counts = Counter(shingle for some_of in shingled for shingle in some_of)
        common = frozenset(s for s, count in counts.items() if count > max(2, COMMON * len(shingled)))
        index: dict[str, list[int]] = defaultdict(list)
        for number, some_of in enumerate(shingled):
            for shingle in some_of - common:
                index[shingle].append(number)
        return Likeness([len(some_of - common) for some_of in shingled], dict(index), common)

    def nearest(self, text: str) -> tuple[int, float] | None:
        """Return the index and Jaccard similarity for the nearest text.

        Return None if no text shares a shingle, or ``text`` has too few distinctive shingles.
        """
        own = shingles(text) - self.common
        shared = Counter(number for shingle in own for number in self.index.get(shingle, ()))
        if len(own) < LEAST or not shared:
            return None
        number, count = shared.most_common(1)[0]
        return number, count / (len(own) + self.sizes[number] - count)
