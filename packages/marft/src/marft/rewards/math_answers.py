"""Mathematical equivalence between answers, decided by math-verify instead of string comparison.

The code runs in the grader's own process (:mod:`marft.rewards.grader`) and has no timeouts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from itertools import pairwise

from math_verify import parse, verify
from sympy import And, Basic, Eq, Expr, Float, Interval, MatrixBase, Rational, Set, Union
from sympy.core.relational import Relational

from marft.agents.answers import (
    bold_in,
    denied,
    find_answer,
    given_together,
    rest_stated,
    undecorated,
    without_aside,
    wordings,
)  # fmt: skip
from marft.common.thoughts import outside_thoughts
from marft.rewards.math_forms import (
    asks_for_interval,
    asks_for_pair,
    asks_for_percentage,
    brackets,
    elements,
    is_endless,
    is_interval,
    is_open_interval,
    plain_formula,
    same_nothing,
    told_apart,
    without_base,
    without_percent,
    without_words,
)  # fmt: skip

LONGEST = 5000  # maximum answer length in characters; longer answers are never right and take math-verify minutes
SLACK = 1.01  # factor on tolerances, as in OlympiadBench's judge
ROUNDED = 0.005  # relative tolerance for a decimal at the end of a chain of equations
_SENTENCE_END = re.compile(r"\.\s|\n\n|\n(?!.*\\end\{)", re.DOTALL)
_FORMULAS = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_EQUALS = re.compile(r"(?<![<>!\\])=(?!=)")
_OF_SETS = re.compile(r"[<>]|\\(?:le|ge|leq|geq|lt|gt|leqslant|geqslant|cup|infty)\b")
_OR = re.compile(r",?\s*(?:\\(?:text|mbox|mathrm)\s*\{\s*or\s*\}|\bor\b|\\cup\b)|,(?=[^()\[\]]*[<>]|[^()\[\]]*\\[lg])")
_WORDS = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{[^{}\d]*\}|[A-Za-z][A-Za-z ]+")
_EITHER = re.compile(r"\d\s*(?:or|oder|ou|或者?)\s*[-−$\d]", re.IGNORECASE)
_DIGITS = re.compile(r"[-−]?\d[\d.,/]*")
_REPLACED = re.compile(r"\Anot\b.*\bbut\b(?=.*\d)", re.IGNORECASE)  # "not $5$, but $6$"
_JOINS = re.compile(r"\b(?:or|and)\b")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")

logging.getLogger("math_verify").setLevel(logging.ERROR)


def equal(gold: str, written: str, tolerances: Sequence[float] = (), question: str = "") -> bool:
    r"""Return True if the written text states the gold answer.

    The answer is read from the last ``\boxed{}`` (or ``<answer>`` tag). Otherwise, it follows the last "the answer is"
    or ``####``. Otherwise, it is the last formula, or the bold text, or anything that math-verify finds in the last
    line.

    >>> equal(r"\frac{1}{2}", "The answer is 0.5."), equal("0.5", r"\boxed{50}"), equal("(2,3)", r"\boxed{\{2,3\}}")
    (True, False, False)
    >>> equal("7", r"\boxed{7\%}"), equal("7", r"\boxed{7\%}", question="What percentage is it?")
    (False, True)

    Args:
        tolerances: maximum differences from the gold numbers; for several answers, one for each or one for all.
        question: the task's question. If it asks for a percentage, 7 % equals 7. If it asks for a point, (0, 1) is not
            an interval.
    """
    expected, stated = _formula(gold), _statement(written)
    if not stated.strip("$") or len(stated) > LONGEST or (is_endless(stated) and not is_endless(expected)):
        return False
    if _WORDS.fullmatch(gold.strip()) and undecorated(gold).casefold() in map(str.casefold, wordings(written)):
        return True
    return _exactly(expected, stated, question) or bool(tolerances and _near(expected, stated, tolerances))


def _exactly(expected: str, stated: str, question: str = "") -> bool:
    nothing = same_nothing(expected, stated)
    if nothing is not None:
        return nothing
    gold, said = _union(expected), _union(stated)
    if gold is not None and said is not None:
        variables = gold[1], said[1]
        return bool(gold[0] == said[0]) and (variables[0] == variables[1] or not all(variables))
    if brackets(expected) == "(" and not brackets(stated) and len(elements(stated)) > 1:
        if is_interval(expected) or (is_open_interval(expected) and asks_for_interval(question)):
            return False
        stated = f"$({stated.strip('$')})$"  # a list without brackets counts as an ordered pair
    stated = without_base(stated, expected, question)
    told = told_apart(expected, stated)
    if told is not None:
        return not told
    if "=" in stated:
        stated = _last_side(stated, expected)
    (expected, of_gold), (stated, of_stated) = without_percent(expected), without_percent(stated)
    relations = is_interval(expected) or (is_open_interval(expected) and not asks_for_pair(question))
    if of_gold == of_stated or (of_stated and asks_for_percentage(question)):
        return _same(expected, stated, relations)
    right, given = (
        f"${formula.strip('$')}/100$" if of else formula for formula, of in ((expected, of_gold), (stated, of_stated))
    )
    return (of_gold and _same(expected, stated, relations)) or _same(right, given, relations)


def _same(expected: str, stated: str, relations: bool) -> bool:
    parsed, given = _parse(without_words(expected)), _parse(without_words(stated))
    return bool(verify(parsed, given, allow_set_relation_comp=relations, timeout_seconds=None))


def _union(formula: str) -> tuple[Set, set[Basic]] | None:
    """Return the set of real numbers in an answer, with its variables.

    Supported are an interval, inequalities joined by "or", and unions. The result is None for anything else.
    """
    if not _OF_SETS.search(formula):
        return None
    parts = filter(str.strip, _OR.split(formula.strip("$")))
    found, variables = list[Set](), set[Basic]()
    for part in parts:
        parsed = _parse(f"${part}$")
        one = parsed[0] if parsed else None
        if isinstance(one, Relational | And) and len(one.free_symbols) == 1:
            variables |= one.free_symbols
            one = one.as_set()
        if not isinstance(one, Interval | Union):
            return None
        found.append(one)
    return (Union(*found), variables) if found else None


def _last_side(stated: str, expected: str) -> str:
    """Return the result of a chain of equations between numbers; "" if two sides differ.

    Other formulas with an equals sign are returned unchanged.
    """
    sides = _EQUALS.split(stated.strip("$"))
    known = [(value, "." in side) for side in sides if (value := _number(side)) is not None]
    for (one, rounded), (other, also) in pairwise(known):
        if abs(one - other) > (ROUNDED if rounded or also else 1e-9) * max(abs(one), abs(other)):
            return ""
    return f"${sides[-1]}$" if len(known) == len(sides) > 1 and "=" not in expected else stated


def _near(expected: str, stated: str, tolerances: Sequence[float]) -> bool:
    """Return True if each gold answer matches a different stated answer within tolerance.

    The rule is that of OlympiadBench's judge.
    """
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
    """Split each answer with ± into two."""
    return [one.replace("\\pm", sign) for one in found for sign in ("+-" if "\\pm" in one else "+")]


def _as_near(right: str, given: str, tolerance: float) -> bool:
    numbers = [_number(formula) for formula in (right, given)]
    if numbers[0] is None or numbers[1] is None:
        return _exactly(f"${right}$", f"${given}$")
    return bool(abs(numbers[0] - numbers[1]) <= tolerance * SLACK)


def _number(formula: str) -> float | None:
    """Evaluate a formula to a float. The result is None if the value is not a real number."""
    parsed = _parse(f"${formula}$")
    found = parsed[0] if parsed else None
    if isinstance(found, Eq):
        found = found.rhs
    return float(found) if isinstance(found, Expr) and found.is_number and found.is_real else None


def _statement(text: str) -> str:
    """Extract the stated answer from a text, in a single formula; "" without an answer."""
    text = outside_thoughts(text)
    found = find_answer(text)
    if found is not None:
        return _formula(found) if found else ""
    text = text.replace("\\$", "")  # a currency sign instead of the end of a formula
    rest = rest_stated(text)
    if rest is not None:
        text = without_aside(_REPLACED.sub("", _first_sentence(rest)))
    formulas = list(_FORMULAS.finditer(text))
    if _takes_back(text, formulas[-1:] or _last_number(text)):
        return ""
    if formulas:
        last = [formulas[-1]]
        for before in reversed(formulas[:-1]):
            if not given_together(text[before.end() : last[0].start()]):
                break
            last.insert(0, before)
        return _formula(", ".join(next(filter(None, match.groups())) for match in last))
    if rest is not None:
        return _formula(text)
    line = text.rstrip().rpartition("\n")[2]
    bold = bold_in(line)
    if bold and any(sign.isdigit() for sign in bold):
        return _formula(bold)
    if _EITHER.search(line):
        return ""
    return _formula(line) if not _WORD.search(_JOINS.sub(",", without_words(_formula(line)))) else text[-LONGEST:]


def _last_number(text: str) -> list[re.Match[str]]:
    return list(_DIGITS.finditer(text, text.rstrip().rfind("\n") + 1))[-1:]


def _takes_back(text: str, last: Sequence[re.Match[str]]) -> bool:
    """Return True if a text rejects its last number or formula."""
    return any(denied(text, *match.span()) for match in last)


def _formula(answer: str) -> str:
    """Return an answer between dollar signs, without currency signs, a full stop or an approximation."""
    exact, _, rounded = plain_formula(answer).partition("\\approx")
    return f"${(exact.strip() or rounded.strip()).removesuffix('.').strip()}$"


def _first_sentence(text: str) -> str:
    """Return the text up to a full stop or line end, without splitting a matrix."""
    end = _SENTENCE_END.search(text)
    return text[: end.start()] if end else text


def _parse(text: str) -> list[object]:
    parsed: list[object] = parse(text, parsing_timeout=None)
    return [_in_fractions(one) for one in parsed]


def _in_fractions(parsed: object) -> object:
    """Convert decimals in an expression to exact fractions: 0.5 → 1/2, and 0.333 stays different from 1/3."""
    if not isinstance(parsed, Basic | MatrixBase):
        return parsed
    decimals = parsed.atoms(Float)
    return parsed.xreplace({one: Rational(str(one)) for one in decimals}) if decimals else parsed
