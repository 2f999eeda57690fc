"""Finding the answer in what the answering agent wrote."""

from __future__ import annotations

import re

STATED = re.compile(r"\banswer\s*(?:is|=|:)\s*:?", re.IGNORECASE)
_BRACES = re.compile("[{}]")
_SIGNS = "+\\-\u2010-\u2015\u2212"
_NO_WORD_BEFORE, _NO_WORD_AFTER = r"(?<!\w)", r"(?!\w)"
_NO_SIGN = rf"(?<![\w.{_SIGNS}~\u2248/^])(?<!\d[*:])(?<!minus )(?<!negative )(?<!\d [{_SIGNS}*/] )"
_NO_REST = rf"(?!\w|[.,'\u2019]\d|\s?%|[{_SIGNS}*/^:]\d|\s[{_SIGNS}*/]\s\d)"
_NO_NUMBER_BEFORE = rf"{_NO_SIGN}(?<!\d,)(?<!\d['\u2019])"
_NO_NUMBER_AFTER = rf"{_NO_REST}(?! \d{{3}}(?!\d))"
_LISTED = re.compile(
    rf"{_NO_SIGN}(?<!\d['\u2019])\d{{1,9}}(?![,'\u2019]\d{{3}}(?!\d)){_NO_REST.replace(',', '', 1)}", re.IGNORECASE
)
_OPENS, _CLOSES = "<answer>", "</answer>"


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{…}``, braces matched; None where there is none that closes.

    >>> last_boxed(r"first \boxed{1}, then \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    start, end = _last_box(text)
    return text[start:end].strip() if start >= 0 else None


def _last_box(text: str) -> tuple[int, int]:
    """Where the content of the last box that closes begins and ends; -1 where there is none."""
    last, ends = -1, -1
    opened: list[int] = []  # braces that wait for their other one: all is found in one pass
    for brace in _BRACES.finditer(text):
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened and (start := opened.pop()) > last and text.endswith("\\boxed{", 0, start):
            last, ends = start, brace.start()
    return last, ends


def find_answer(text: str) -> str | None:
    r"""The last ``\boxed{…}`` or ``<answer>…</answer>``, whichever begins later; None where there is neither.

    >>> find_answer(r"First \boxed{3}, but no: <answer> 7 </answer>"), find_answer(r"<answer>\boxed{7}</answer>")
    ('7', '7')
    """
    boxed, ends = _last_box(text)
    tag = text.rfind(_OPENS, 0, max(text.rfind(_CLOSES), 0))  # of those that a closing one follows
    if tag >= max(boxed, 0):
        return text[tag + len(_OPENS) : text.index(_CLOSES, tag)].strip()
    return text[boxed:ends].strip() if boxed >= 0 else None


def stated_answer(text: str) -> str:
    r"""The part of a text that states its answer: the last ``\boxed{…}`` or ``<answer>`` tag, else the rest of the line
    after the last "the answer is", else the whole text.

    >>> stated_answer("2 + 3 makes 5.\nThe answer is **5**."), stated_answer(" 5 ")
    ('5', '5')
    """
    found = find_answer(text)
    if found is not None:
        return found
    *before, statement = STATED.split(text)
    if not before:
        return text.strip()
    line = statement.lstrip(" \t*_\n").partition("\n")[0]
    return line.rstrip().removesuffix(".").rstrip("*_ \t").removesuffix(".")


def states_answer(text: str) -> bool:
    r"""Whether a text has an answer that is marked as one: in a box or a tag, or after "the answer is".

    >>> states_answer(r"\boxed{5}"), states_answer("I agree.")
    (True, False)
    """
    return find_answer(text) is not None or STATED.search(text) is not None


def named(words: str) -> re.Pattern[str]:
    """Return what finds words in a text where they stand for themselves. Digits at their ends are not part of another
    number: of a negative one, a decimal, a fraction, a percentage, a range, a time or one with thousands.

    >>> [bool(named("1").search(text)) for text in ("I choose 1.", "(1)", "-1", "1.5", "0.1", "1/2", "1,000")]
    [True, True, False, False, False, False, False]
    """
    before = _NO_NUMBER_BEFORE if words[:1].isdigit() else _NO_WORD_BEFORE
    after = _NO_NUMBER_AFTER if words[-1:].isdigit() else _NO_WORD_AFTER
    return re.compile(f"{before}{re.escape(words)}{after}", re.IGNORECASE)


def whole_numbers(text: str) -> list[int]:
    """Return the whole numbers of a list in a text, in its order. Others are left out, not read in part.

    >>> whole_numbers("2, then 1, and 7; not -3, 0.5 or 1/2"), whole_numbers("1,2")
    ([2, 1, 7], [1, 2])
    """
    return [int(number) for number in _LISTED.findall(text)]


def answer_in(solution: str) -> str:
    r"""The answer in a solution: the last ``\boxed{}``, else what follows ``####`` (GSM8K), else the whole text.

    >>> answer_in("3 + 4 = 7\n#### 7")
    '7'
    """
    boxed = last_boxed(solution)
    return boxed if boxed is not None else solution.rpartition("####")[2].strip()
