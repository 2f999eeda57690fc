"""Whether two mathematical answers are equal, as mathematics: math-verify decides, never a comparison of strings.

Runs in the grader's own process (:mod:`marft.rewards.grader`); nothing here guards against answers that take forever.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Eq, Expr

from marft.game.answers import STATED, find_answer
from marft.rewards.math_forms import elements, is_interval, told_apart

LONGEST = 5000  # characters of an answer; math-verify takes minutes for more, and no right one has so many
SLACK = 1.01  # of a tolerance, as OlympiadBench's judge has it
_SENTENCE_END = re.compile(r"\.\s|\n\n|\n(?!.*\\end\{)", re.DOTALL)
_DOLLARS = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$", re.DOTALL)
_LATEX = (LatexExtractionConfig(), ExprExtractionConfig())

logging.getLogger("math_verify").setLevel(logging.ERROR)


def equal(gold: str, written: str, tolerances: Sequence[float] = ()) -> bool:
    r"""Whether what was written states the gold answer.

    The answer is looked for in the last ``\boxed{}`` (or ``<answer>`` tag), else after the last "the answer is", else
    in the last formula between dollars, else wherever math-verify finds one.

    >>> equal(r"\frac{1}{2}", "The answer is 0.5."), equal("0.5", r"\boxed{50}"), equal("(2,3)", r"\boxed{\{2,3\}}")
    (True, False, False)

    Args:
        tolerances: how far a number may be from the gold one; of several answers, one for each, or one for all.
    """
    expected, stated = _formula(gold), _statement(written)
    if len(stated) > LONGEST:
        return False
    return _exactly(expected, stated) or bool(tolerances and _near(expected, stated, tolerances))


def _exactly(expected: str, stated: str) -> bool:
    told = told_apart(expected, stated)
    if told is not None:
        return not told
    parsed = _parse(expected)
    relations = is_interval(expected)  # an interval may be written as an inequality
    return bool(parsed) and verify(parsed, _parse(stated), allow_set_relation_comp=relations, timeout_seconds=None)


def _near(expected: str, stated: str, tolerances: Sequence[float]) -> bool:
    """Whether each of the gold answers has one of its own among those stated that is near it, as OlympiadBench's own
    judge has it."""
    rights, givens = (_each_sign(elements(formula)) for formula in (expected, stated))
    if len(rights) != len(givens):
        return False
    each = list(tolerances) if len(tolerances) == len(rights) else [tolerances[0]] * len(rights)
    for right, tolerance in zip(rights, each, strict=True):
        match = next((given for given in givens if _as_near(right, given, tolerance)), None)
        if match is None:
            return False
        givens.remove(match)
    return True


def _each_sign(found: Sequence[str]) -> list[str]:
    """Both answers of each that is written with ±."""
    return [one.replace("\\pm", sign) for one in found for sign in ("+-" if "\\pm" in one else "+")]


def _as_near(right: str, given: str, tolerance: float) -> bool:
    numbers = [_number(formula) for formula in (right, given)]
    if numbers[0] is None or numbers[1] is None:
        return _exactly(f"${right}$", f"${given}$")
    return bool(abs(numbers[0] - numbers[1]) <= tolerance * SLACK)


def _number(formula: str) -> float | None:
    """The real number that a formula is; None where it is none."""
    parsed = _parse(f"${formula}$")
    found = parsed[0] if parsed else None
    if isinstance(found, Eq):
        found = found.rhs
    return float(found) if isinstance(found, Expr) and found.is_number and found.is_real else None


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
