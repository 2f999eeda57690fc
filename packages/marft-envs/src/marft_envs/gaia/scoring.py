"""GAIA's quasi-exact match: a single correct answer, with small tolerance for its form.

It follows Mialon et al. 2023, section 3.3, and the scorer of GAIA's leaderboard. The form of the correct answer
decides whether answers are compared as numbers, lists or texts.
"""

from __future__ import annotations

import re
import string

STATED = re.compile(r"final answer[*_]*\s*:[*_]*", re.IGNORECASE)
BOXED = re.compile(r"\$*\\boxed\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}\$*")
MARKS = ("**", "__", "`", "*", "_")
_BETWEEN = re.compile(r"[,;]")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_UNITS = str.maketrans("", "", "$%,")  # symbols allowed around a number


def stated(text: str) -> str | None:
    """Return the text after the last ``FINAL ANSWER:``, up to the end of its line, or None without one.

    Marks around an answer (Markdown, a box) are removed. The leaderboard's scorer gets an extracted answer, so this
    extraction is MARFT's own.

    >>> stated("I looked.\\nFINAL ANSWER: 1,912"), stated("1912")
    ('1,912', None)
    >>> stated("**Final Answer**: 17"), stated(r"FINAL ANSWER: **\\boxed{17}**")
    ('17', '17')
    """
    parts = STATED.split(text)
    if len(parts) == 1:
        return None
    lines = parts[-1].strip().splitlines()
    return _unmarked(lines[0].strip()) if lines else ""


def _unmarked(answer: str) -> str:
    """Remove marks around an answer.

    >>> _unmarked("`a_b`"), _unmarked("2 * 3"), _unmarked("*")
    ('a_b', '2 * 3', '*')
    """
    while True:
        mark = next((mark for mark in MARKS if _stands_around(mark, answer)), "")
        boxed = None if mark else BOXED.fullmatch(answer)
        if not mark and not boxed:
            return answer
        answer = (boxed[1] if boxed else answer[len(mark) : -len(mark)]).strip()


def _stands_around(mark: str, answer: str) -> bool:
    return len(answer) > 2 * len(mark) and answer.startswith(mark) and answer.endswith(mark)


def matches(answer: str, right: str) -> bool:
    """Return True if an answer matches the correct answer.

    Numbers are compared by value, without ``$``, ``%`` and commas. Lists must have equal lengths, and elements are
    compared in order, as numbers or as texts with punctuation. Texts are compared without case, spaces and
    punctuation.

    >>> matches("$1,234.0", "1234"), matches("saint petersburg.", "Saint Petersburg"), matches("b; 2", "b,2")
    (True, True, True)
    >>> matches("17 km", "17"), matches("a, b", "b, a"), matches("ab, c", "a.b, c")
    (False, False, False)
    """
    if _number(right) is not None:
        return _without_units(answer) == _number(right)
    if _BETWEEN.search(right):
        given, wanted = _BETWEEN.split(answer), _BETWEEN.split(right)
        return len(given) == len(wanted) and all(map(_same_element, given, wanted))
    return _bare(answer).translate(_PUNCTUATION) == _bare(right).translate(_PUNCTUATION)


def _same_element(answer: str, right: str) -> bool:
    number = _number(right)
    return _without_units(answer) == number if number is not None else _bare(answer) == _bare(right)


def _without_units(answer: str) -> float | None:
    return _number(answer.translate(_UNITS))


def _number(text: str) -> float | None:
    """Parse a text as a Python float; None if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return None


def _bare(text: str) -> str:
    return "".join(text.split()).lower()
