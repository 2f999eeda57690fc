"""In which scripts agents write: a switch of language shows in its letters, where the languages share none."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache

JAPANESE = ("HIRAGANA", "KATAKANA")  # which are written among characters that Unicode calls CJK
WIDTHS = ("FULLWIDTH", "HALFWIDTH")


def other_script(pairs: Iterable[tuple[str, str]]) -> float | None:
    """Share of the letters of texts that are of a script that their task does not use; None without letters.

    Args:
        pairs: what the task shows, and what was written of it.

    >>> other_script([("Add 2 and 3.", "also fünf, or пять")])
    0.2857142857142857
    """
    letters = other = 0
    for shown, text in pairs:
        used = set(scripts(shown))
        for script, count in scripts(text).items():
            letters += count
            other += count * (script not in used)
    return other / letters if letters else None


def scripts(text: str) -> Counter[str]:
    """Letters by script: the first word of a character's name in Unicode, which but for widths and Japanese is its
    script.

    >>> scripts("Δx 漢字")
    Counter({'CJK': 2, 'GREEK': 1, 'LATIN': 1})
    """
    found: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if script := _script(character):
            found[script] += count
    return found


@cache
def _script(character: str) -> str:
    """ "" of what is no letter, or has no name."""
    if not character.isalpha():
        return ""
    words = unicodedata.name(character, "").split()
    word = next((word for word in words if word not in WIDTHS), "")
    return "CJK" if word in JAPANESE else word
