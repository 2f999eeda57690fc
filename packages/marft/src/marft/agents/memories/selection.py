"""Selection of texts within a token budget, and the keys of derived texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from marft.config.interfaces.memory import TokenCounter

Keys = frozenset[str]
MAX_KEYS = 64  # maximum keys per text; a text with more sources matches every key
ANY_KEY = "\0any"  # placeholder for more than MAX_KEYS keys
_TOKENS = re.compile(r"\w+|[^\w\s]")
_WORDS = re.compile(r"\w+")


def merge_keys(keys: Iterable[Keys]) -> Keys:
    """Return the keys of a text derived from several texts.

    >>> sorted(merge_keys([frozenset(["ann"]), frozenset(["bea"])]))
    ['ann', 'bea']
    """
    all_keys = frozenset[str]().union(*keys)
    return frozenset([ANY_KEY]) if len(all_keys) > MAX_KEYS or ANY_KEY in all_keys else all_keys


def has_source(keys: Keys, key: str) -> bool:
    """Return true if an entry with this key may be a source."""
    return key in keys or ANY_KEY in keys


class NumberedText(NamedTuple):
    """Text with its number in the order of writing."""

    number: int
    text: str


def count_words(text: str) -> int:
    """Return the number of words and punctuation marks in a text, a token count without a tokenizer.

    >>> count_words("Ann's cat is red.")
    7
    """
    return len(_TOKENS.findall(text))


def word_set(text: str) -> frozenset[str]:
    """Return the words in a text, case-folded.

    >>> sorted(word_set("Ann's cat"))
    ['ann', 'cat', 's']
    """
    return frozenset(_WORDS.findall(text.casefold()))


def select_fitting(
    ranked: Sequence[NumberedText], budget: int, count: TokenCounter, max_texts: int = 0
) -> tuple[str, ...]:
    """Return the best texts that fit within a token budget, in the order of writing.

    Texts are tried from best to worst. A text that does not fit is skipped. If none fits, the best text is
    truncated.

    Args:
        ranked: texts, the best first.
        budget: maximum tokens of all texts together, one per line.
        max_texts: maximum number of texts; 0 means no limit.

    >>> texts = ["Bea is a cook.", "Ann lives in Rome, near the river.", "Ann laughs."]
    >>> texts = [NumberedText(number, text) for number, text in zip((2, 1, 0), texts)]
    >>> select_fitting(texts, 9, count_words)
    ('Ann laughs.', 'Bea is a cook.')
    """
    chosen, remaining, separator_tokens = list[NumberedText](), budget, count("\n")
    for candidate in ranked:
        if remaining <= 0 or (max_texts and len(chosen) == max_texts):
            break
        needed = count(candidate.text) + (separator_tokens if chosen else 0)
        if needed <= remaining:
            chosen.append(candidate)
            remaining -= needed
    while chosen and count(_join_texts(chosen)) > budget:  # a tokenizer may split texts differently where they meet
        chosen.pop()
    if not chosen and ranked:
        shortened = truncate(ranked[0].text, budget, count)
        return (shortened,) if shortened else ()
    return tuple(candidate.text for candidate in sorted(chosen))


def truncate(text: str, budget: int, count: TokenCounter) -> str:
    """Truncate a text to a token budget, keeping its beginning.

    >>> truncate("Ann lives in Rome.", 3, count_words)
    'Ann lives in'
    """
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle]) <= budget else (low, middle - 1)
    while low and count(text[:low].rstrip()) > budget:  # a longer text can have fewer tokens
        low -= 1
    return text[:low].rstrip()


def _join_texts(chosen: Sequence[NumberedText]) -> str:
    return "\n".join(numbered.text for numbered in sorted(chosen))
