"""GAIA's quasi-exact match: one right answer, and small licence in how it is written.

Mialon et al. 2023, section 3.3, as the scorer of its leaderboard has it: whether an answer is a number, a list or a
text is the right answer's to say.
"""

from __future__ import annotations

import re
import string

STATED = re.compile(r"final answer[*_]*\s*:[*_]*", re.IGNORECASE)
BOXED = re.compile(r"\$*\\boxed\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}\$*")
MARKS = ("**", "__", "`", "*", "_")
_BETWEEN = re.compile(r"[,;]")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_UNITS = str.maketrans("", "", "$%,")  # that a number may come with


def stated(text: str) -> str | None:
    """What is stated after the last ``FINAL ANSWER:``, to the end of its line, without the marks that models like to
    set around an answer (Markdown's, a box); None where nothing is. Where an answer stands is ours to say: the scorer
    of the leaderboard is given it.

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
    """It without what stands on both sides of it.

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
    """Whether an answer is the right one.

    A number is equal, without ``$``, ``%`` and commas; a list has as many elements, each equal to the one in its place
    as a number or as a text with its punctuation; a text is equal but for case, spaces and punctuation.

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
    """The number that a text is, as Python reads it."""
    try:
        return float(text)
    except ValueError:
        return None


def _bare(text: str) -> str:
    return "".join(text.split()).lower()
