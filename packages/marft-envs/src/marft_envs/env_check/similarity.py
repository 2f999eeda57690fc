"""Text similarity between tasks, without shingles that most tasks share."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from marft.common.types import Task
from marft_envs.env_check.loading import to_json_types

SHINGLE_WORDS = 3  # words per shingle
COMMON_SHARE = 0.05  # share of texts above which a shingle is too common to count
MIN_SHINGLES = 3  # minimum distinctive shingles of a text; shorter texts are skipped
TOKEN = re.compile(r"\w+|[^\w\s]")


def normalize(text: str) -> str:
    """Normalize case and spacing.

    >>> normalize(" Two\\n words ")
    'two words'
    """
    return " ".join(text.split()).casefold()


def task_text(task: Task) -> str:
    """Return a task's prompt and data as text."""
    return f"{normalize(task.prompt)}\n{normalize(json.dumps(to_json_types(task.data), default=str, sort_keys=True))}"


def shingles(text: str) -> set[str]:
    """Return the shingles in a text: each run with three words.

    >>> sorted(shingles("a b c d"))
    ['a b c', 'b c d']
    """
    words = TOKEN.findall(text)
    return {" ".join(words[at : at + SHINGLE_WORDS]) for at in range(max(1, len(words) - SHINGLE_WORDS + 1))}


def jaccard(first: set[str], second: set[str]) -> float:
    """Return ``|A ∩ B| / |A ∪ B|``; 1 if both sets are empty.

    >>> jaccard({"a", "b"}, {"b", "c", "d"})
    0.25
    """
    return len(first & second) / len(first | second) if first or second else 1.0


@dataclass(frozen=True, slots=True)
class SimilarityIndex:
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
    def from_texts(texts: Sequence[str]) -> SimilarityIndex:
        """Build an index from texts."""
        shingle_sets = list(map(shingles, texts))
        counts = Counter(shingle for text_shingles in shingle_sets for shingle in text_shingles)
        common = frozenset(s for s, count in counts.items() if count > max(2, COMMON_SHARE * len(shingle_sets)))
        index: dict[str, list[int]] = defaultdict(list)
        for number, text_shingles in enumerate(shingle_sets):
            for shingle in text_shingles - common:
                index[shingle].append(number)
        return SimilarityIndex([len(text_shingles - common) for text_shingles in shingle_sets], dict(index), common)

    def find_nearest(self, text: str) -> tuple[int, float] | None:
        """Return the index and Jaccard similarity for the nearest text.

        Return None if no text shares a shingle, or ``text`` has too few distinctive shingles.
        """
        own_shingles = shingles(text) - self.common
        shared = Counter(number for shingle in own_shingles for number in self.index.get(shingle, ()))
        if len(own_shingles) < MIN_SHINGLES or not shared:
            return None
        number, count = shared.most_common(1)[0]
        return number, count / (len(own_shingles) + self.sizes[number] - count)
