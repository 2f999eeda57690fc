"""Finding the answer in what the answering agent wrote."""

from __future__ import annotations

import re

STATED = re.compile(r"\banswer\s*(?:is|=|:)\s*:?", re.IGNORECASE)
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""The content of the last ``\boxed{…}``, braces matched; None where there is none that closes.

    >>> last_boxed(r"first \boxed{1}, then \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    start = text.rfind("\\boxed{")
    while start >= 0:
        depth = 0
        for index in range(start + len("\\boxed"), len(text)):
            depth += (text[index] == "{") - (text[index] == "}")
            if depth == 0:
                return text[start + len("\\boxed{") : index].strip()
        start = text.rfind("\\boxed{", 0, start)
    return None


def find_answer(text: str) -> str | None:
    r"""The last ``\boxed{…}``, else the last ``<answer>…</answer>``, else None.

    >>> find_answer("I think <answer> 7 </answer>")
    '7'
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    tagged = _TAG.findall(text)
    return tagged[-1].strip() if tagged else None


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


def answer_in(solution: str) -> str:
    r"""The answer in a solution: the last ``\boxed{}``, else what follows ``####`` (GSM8K), else the whole text.

    >>> answer_in("3 + 4 = 7\n#### 7")
    '7'
    """
    boxed = last_boxed(solution)
    return boxed if boxed is not None else solution.rpartition("####")[2].strip()
