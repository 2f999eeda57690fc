"""Whether two mathematical answers are equal, as mathematics: math-verify decides, never a comparison of strings.

Runs in the grader's own process (:mod:`marft.rewards.grader`); nothing here guards against answers that take forever.
"""

from __future__ import annotations

import logging
import re

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from marft.game.answers import STATED, find_answer
from marft.rewards.math_forms import is_interval, told_apart

LONGEST = 5000  # characters of an answer; math-verify takes minutes for more, and no right one has so many

_SENTENCE_END = re.compile(r"\.\s|\n\n|\n(?!.*\\end\{)", re.DOTALL)
_DOLLARS = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$", re.DOTALL)
_LATEX = (LatexExtractionConfig(), ExprExtractionConfig())

logging.getLogger("math_verify").setLevel(logging.ERROR)


def equal(gold: str, written: str) -> bool:
    r"""Whether what was written states the gold answer.

    The answer is looked for in the last ``\boxed{}`` (or ``<answer>`` tag), else after the last "the answer is", else
    in the last formula between dollars, else wherever math-verify finds one.

    >>> equal(r"\frac{1}{2}", "The answer is 0.5."), equal("0.5", r"\boxed{50}"), equal("(2,3)", r"\boxed{\{2,3\}}")
    (True, False, False)
    """
    expected, stated = _formula(gold), _statement(written)
    if len(stated) > LONGEST:
        return False
    told = told_apart(expected, stated)
    if told is not None:
        return not told
    parsed = _parse(expected)
    relations = is_interval(expected)  # an interval may be written as an inequality
    return bool(parsed) and verify(parsed, _parse(stated), allow_set_relation_comp=relations, timeout_seconds=None)


def _statement(text: str) -> str:
    """The part of a text that states its answer, as one formula."""
    found = find_answer(text)
    if found is not None:
        return _formula(found)
    text = text.replace("\\$", "")  # a currency sign, not the end of a formula
    *before, statement = STATED.split(text)
    if before:
        text = _first_sentence(statement)
    formulas = _DOLLARS.findall(text)
    if formulas:
        return _formula(formulas[-1][0] or formulas[-1][1])
    return _formula(text) if before else text[-LONGEST:]


def _formula(answer: str) -> str:
    """An answer between dollars, without what is no mathematics: currency signs, a full stop, an approximation."""
    exact, _, rounded = " ".join(answer.replace("\\$", "").split()).partition("\\approx")
    return f"${(exact.strip() or rounded.strip()).removesuffix('.').strip()}$"


def _first_sentence(text: str) -> str:
    """Up to a full stop or a line's end; the lines of a matrix stay together."""
    return _SENTENCE_END.split(text.strip(), maxsplit=1)[0]


def _parse(text: str) -> list[object]:
    parsed: list[object] = parse(text, extraction_config=_LATEX, parsing_timeout=None)
    return parsed
