"""Full-text search: an inverted index with precomputed BM25 scores."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

BM25_K1, BM25_B = 0.9, 0.4  # BM25's k1 and b, with the values of Anserini, WebShop's search engine
_CHARACTER_WORDS = r"\u3040-\u30ff\u3400-\u9fff"  # kana and ideographs are written without spaces, so each is a word
_WORDS = re.compile(rf"[{_CHARACTER_WORDS}]|[^\W_{_CHARACTER_WORDS}]+")


def tokenize(text: str) -> list[str]:
    """Split a text into search words: letters and digits in any script, without case.

    >>> tokenize("Norda X-Large scarf, 12"), tokenize("Café Москва 東京")
    (['norda', 'x', 'large', 'scarf', '12'], ['café', 'москва', '東', '京'])
    """
    return _WORDS.findall(text.casefold())


class SearchIndex:
    """Immutable search index over texts, sharable between sessions.

    The score of a text d for a word w is ``idf(w) · f / (f + k1 (1 − b + b |d| / mean |d|))``. The variable f is the
    frequency of w in d, and ``idf(w) = ln(1 + (N − n + 0.5) / (n + 0.5))`` if n of N texts contain w. A query's
    score is the sum over its words (Robertson and Zaragoza 2009, in Lucene's form).
    """

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(tokenize(text)) for text in texts]
        lengths = np.array([count.total() for count in counts], np.float64)
        mean = float(lengths.mean()) if len(texts) else 1.0
        postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for text_index, count in enumerate(counts):
            for word, frequency in count.items():
                postings[word].append((text_index, frequency))
        self._size = len(texts)
        self._entries: dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]] = {}
        for word, entries in postings.items():
            places = np.array([text_index for text_index, _ in entries], np.int64)
            frequencies = np.array([frequency for _, frequency in entries], np.float64)
            idf = math.log(1 + (self._size - len(entries) + 0.5) / (len(entries) + 0.5))
            norm = BM25_K1 * (1 - BM25_B + BM25_B * lengths[places] / mean)
            self._entries[word] = places, idf * frequencies / (frequencies + norm)

    def search(self, query: str, limit: int) -> list[int]:
        """Return indices of up to ``limit`` texts that share a word with a query, highest score first.

        Equal scores keep the order of the texts.
        """
        scores = np.zeros(self._size)
        for word, frequency in Counter(tokenize(query)).items():
            if word in self._entries:
                places, weights = self._entries[word]
                scores[places] += frequency * weights
        (hits,) = np.nonzero(scores)
        order = np.lexsort((hits, -scores[hits].round(9)))
        return [int(text_index) for text_index in hits[order[:limit]]]
