"""GAIA's quasi-exact match: a single correct answer, with small tolerance for its form.

It follows Mialon et al. 2023, section 3.3, and the scorer of GAIA's leaderboard. The form of the correct answer
decides whether answers are compared as numbers, lists or texts.
"""

from __future__ import annotations

import re
import string

FINAL_ANSWER = re.compile(r"final answer[*_]*\s*:[*_]*", re.IGNORECASE)
BOXED_PATTERN = re.compile(r"\$*\\boxed\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}\$*")
MARKS = ("**", "__", "`", "*", "_")
_LIST_SEPARATOR = re.compile(r"[,;]")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_UNITS = str.maketrans("", "", "$%,")  # symbols allowed around a number


def extract_answer(text: str) -> str | None:
    """Return the text after the last ``FINAL ANSWER:``, up to the end of its line, or None without one.

    Marks around an answer (Markdown, a box) are removed. The leaderboard's scorer gets an extracted answer, so this
    extraction is MARFT's own.

    >>> extract_answer("I looked.\\nFINAL ANSWER: 1,912"), extract_answer("1912")
    ('1,912', None)
    >>> extract_answer("**Final Answer**: 17"), extract_answer(r"FINAL ANSWER: **\\boxed{17}**")
    ('17', '17')
    """
    parts = FINAL_ANSWER.split(text)
    if len(parts) == 1:
        return None
    lines = parts[-1].strip().splitlines()
    return _strip_marks(lines[0].strip()) if lines else ""


def _strip_marks(answer: str) -> str:
    """Remove marks around an answer.

    >>> _strip_marks("`a_b`"), _strip_marks("2 * 3"), _strip_marks("*")
    ('a_b', '2 * 3', '*')
    """
    while True:
        mark = next((mark for mark in MARKS if _is_marked(mark, answer)), "")
        boxed = None if mark else BOXED_PATTERN.fullmatch(answer)
        if not mark and not boxed:
            return answer
        answer = (boxed[1] if boxed else answer[len(mark) : -len(mark)]).strip()


def _is_marked(mark: str, answer: str) -> bool:
    return len(answer) > 2 * len(mark) and answer.startswith(mark) and answer.endswith(mark)


def answers_match(answer: str, expected: str) -> bool:
    """Return True if an answer matches the correct answer.

    Numbers are compared by value, without ``$``, ``%`` and commas. Lists must have equal lengths, and elements are
    compared in order, as numbers or as texts with punctuation. Texts are compared without case, spaces and
    punctuation.

    >>> answers_match("$1,234.0", "1234"), answers_match("saint petersburg.", "Saint Petersburg")
    (True, True)
    >>> answers_match("b; 2", "b,2")
    True
    >>> answers_match("17 km", "17"), answers_match("a, b", "b, a"), answers_match("ab, c", "a.b, c")
    (False, False, False)
    """
    if _parse_number(expected) is not None:
        return _without_units(answer) == _parse_number(expected)
    if _LIST_SEPARATOR.search(expected):
        answer_items, expected_items = _LIST_SEPARATOR.split(answer), _LIST_SEPARATOR.split(expected)
        return len(answer_items) == len(expected_items) and all(map(_elements_match, answer_items, expected_items))
    return _normalize(answer).translate(_PUNCTUATION) == _normalize(expected).translate(_PUNCTUATION)


def _elements_match(answer: str, expected: str) -> bool:
    number = _parse_number(expected)
    return _without_units(answer) == number if number is not None else _normalize(answer) == _normalize(expected)


def _without_units(answer: str) -> float | None:
    return _parse_number(answer.translate(_UNITS))


def _parse_number(text: str) -> float | None:
    """Parse a text as a Python float; None if it is not a number."""
    try:
        return float(text)
    except ValueError:
        return None


def _normalize(text: str) -> str:
    return "".join(text.split()).lower()
