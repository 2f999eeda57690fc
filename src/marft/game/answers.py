"""Finding the answer in what the answering agent wrote."""

from __future__ import annotations

import re

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
