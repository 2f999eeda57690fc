"""Whether two mathematical answers are equal, as mathematics: math-verify decides, never a comparison of strings.

Runs in the grader's own process (:mod:`marft.rewards.grader`); nothing here guards against answers that take forever.
"""

from __future__ import annotations

import logging
import re

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from marft.game.answers import STATED, find_answer

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
    if {_brackets(expected), _brackets(stated)} == {"(", "{"}:
        return False  # math-verify lets a pair equal a set
    parsed = _parse(expected)
    return bool(parsed) and verify(parsed, _parse(stated), timeout_seconds=None)


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
    return _formula(text) if before else text


def _formula(answer: str) -> str:
    """An answer between dollars, without what is no mathematics: currency signs, a full stop, an approximation."""
    exact, _, rounded = " ".join(answer.replace("\\$", "").split()).partition("\\approx")
    return f"${(exact.strip() or rounded.strip()).removesuffix('.').strip()}$"


def _first_sentence(text: str) -> str:
    """Up to a full stop or a line's end; the lines of a matrix stay together."""
    return _SENTENCE_END.split(text.strip(), maxsplit=1)[0]


def _brackets(formula: str) -> str:
    """``"("`` for what is written as a pair, point or open interval, ``"{"`` for a set, else nothing."""
    plain = re.sub(r"\\left|\\right|\\[,;:! ]|[\s$]", "", formula).replace("\\{", "{").replace("\\}", "}")
    return plain[0] if plain[:1] + plain[-1:] in ("()", "{}") else ""


def _parse(text: str) -> list[object]:
    parsed: list[object] = parse(text, extraction_config=_LATEX, parsing_timeout=None)
    return parsed
