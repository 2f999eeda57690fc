"""Search by words: an inverted index whose entries are scores of BM25, worked out once."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SATURATION, LENGTH = 0.9, 0.4  # k1 and b, as Anserini, which WebShop searches with, has them
_ALONE = r"\u3040-\u30ff\u3400-\u9fff"  # kana and ideographs, which no space sets apart: each is a word
_WORDS = re.compile(rf"[{_ALONE}]|[^\W_{_ALONE}]+")


def words_in(text: str) -> list[str]:
    """The words that are searched for: letters and digits of any script, without case.

    >>> words_in("Norda X-Large scarf, 12"), words_in("Café Москва 東京")
    (['norda', 'x', 'large', 'scarf', '12'], ['café', 'москва', '東', '京'])
    """
    return _WORDS.findall(text.casefold())


class Index:
    """Finds texts by words. It is made once and never changes, so that sessions share it.

    The score of a text d for a word w is ``idf(w) · f / (f + k1 (1 − b + b |d| / mean |d|))``, with f how often w is in
    d and ``idf(w) = ln(1 + (N − n + 0.5) / (n + 0.5))`` where n of N texts hold it; a query's is the sum over its words
    (Robertson and Zaragoza 2009, in the form that Lucene computes).
    """

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(words_in(text)) for text in texts]
        lengths = np.array([count.total() for count in counts], np.float64)
        mean = float(lengths.mean()) if len(texts) else 1.0
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for place, count in enumerate(counts):
            for word, often in count.items():
                found[word].append((place, often))
        self._size = len(texts)
        self._entries: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]] = {}
        for word, entries in found.items():
            places = np.array([place for place, _ in entries], np.int64)
            times = np.array([often for _, often in entries], np.float64)
            rarity = math.log(1 + (self._size - len(entries) + 0.5) / (len(entries) + 0.5))
            norm = SATURATION * (1 - LENGTH + LENGTH * lengths[places] / mean)
            self._entries[word] = places, rarity * times / (times + norm)

    def best(self, query: str, most: int) -> list[int]:
        """Places of the texts that share a word with a query: the highest scores first, equal ones as they stand."""
        scores = np.zeros(self._size)
        for word, often in Counter(words_in(query)).items():
            if word in self._entries:
                places, worth = self._entries[word]
                scores[places] += often * worth
        (hits,) = np.nonzero(scores)
        order = np.lexsort((hits, -scores[hits].round(9)))
        return [int(place) for place in hits[order[:most]]]
