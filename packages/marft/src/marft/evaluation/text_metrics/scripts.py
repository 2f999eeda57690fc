"""Scripts in agents' texts; a switch between languages is visible if they use different scripts."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache

JAPANESE = ("HIRAGANA", "KATAKANA")  # scripts that are mixed with characters named CJK in Unicode
WIDTHS = ("FULLWIDTH", "HALFWIDTH")


def other_script(pairs: Iterable[tuple[str, str]]) -> float | None:
    """Return the share of letters in scripts absent from the task. The result is None without letters.

    Args:
        pairs: the text of the task, and the text written for it.

    >>> other_script([("Add 2 and 3.", "also fünf, or пять")])
    0.2857142857142857
    """
    letters = num_other = 0
    for task_text, text in pairs:
        used = set(count_scripts(task_text))
        for script, count in count_scripts(text).items():
            letters += count
            num_other += count * (script not in used)
    return num_other / letters if letters else None


def count_scripts(text: str) -> Counter[str]:
    """Count the letters by script.

    The script is the first word of a character's Unicode name, except for width prefixes and Japanese.

    >>> count_scripts("Δx 漢字")
    Counter({'CJK': 2, 'GREEK': 1, 'LATIN': 1})
    """
    counts: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if script := _script_of(character):
            counts[script] += count
    return counts


@cache
def _script_of(character: str) -> str:
    """Return the script of a letter; "" for other characters and for letters without a name."""
    if not character.isalpha():
        return ""
    words = unicodedata.name(character, "").split()
    word = next((word for word in words if word not in WIDTHS), "")
    return "CJK" if word in JAPANESE else word
