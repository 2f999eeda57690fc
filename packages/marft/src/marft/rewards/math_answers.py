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
    answer_candidates,
    find_answer,
    find_bold,
    is_negated,
    is_separator,
    strip_explanation,
    strip_markup,
    text_after_statement,
)
from marft.common.reasoning import strip_reasoning
from marft.rewards.math_notation import (
    bracket_kind,
    expects_interval,
    expects_pair,
    expects_percent,
    has_different_notation,
    is_interval,
    is_open_interval,
    is_too_large,
    normalize_formula,
    same_no_solution,
    split_elements,
    strip_implied_base,
    strip_percent,
    strip_words,
)

MAX_LENGTH = 5000  # maximum answer length in characters; longer answers are never right and take math-verify minutes
TOLERANCE_FACTOR = 1.01  # factor on tolerances, as in OlympiadBench's judge
ROUNDING_TOLERANCE = 0.005  # relative tolerance for a decimal at the end of a chain of equations
_SENTENCE_END = re.compile(r"\.\s|\n\n|\n(?!.*\\end\{)", re.DOTALL)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_EQUALS = re.compile(r"(?<![<>!\\])=(?!=)")
_SET_NOTATION = re.compile(r"[<>]|\\(?:le|ge|leq|geq|lt|gt|leqslant|geqslant|cup|infty)\b")
_OR = re.compile(r",?\s*(?:\\(?:text|mbox|mathrm)\s*\{\s*or\s*\}|\bor\b|\\cup\b)|,(?=[^()\[\]]*[<>]|[^()\[\]]*\\[lg])")
_WORDS = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{[^{}\d]*\}|[A-Za-z][A-Za-z ]+")
_ALTERNATIVES = re.compile(r"\d\s*(?:or|oder|ou|或者?)\s*[-−$\d]", re.IGNORECASE)
_DIGIT_RUN = re.compile(r"[-−]?\d[\d.,/]*")
_CORRECTION = re.compile(r"\Anot\b.*\bbut\b(?=.*\d)", re.IGNORECASE)  # "not $5$, but $6$"
_CONNECTIVES = re.compile(r"\b(?:or|and)\b")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")

logging.getLogger("math_verify").setLevel(logging.ERROR)


def matches_gold(gold: str, written: str, tolerances: Sequence[float] = (), question: str = "") -> bool:
    r"""Return True if the written text states the gold answer.

    The answer is read from the last ``\boxed{}`` (or ``<answer>`` tag). Otherwise, it follows the last "the answer is"
    or ``####``. Otherwise, it is the last formula, or the bold text, or anything that math-verify finds in the last
    line.

    >>> matches_gold(r"\frac{1}{2}", "The answer is 0.5."), matches_gold("0.5", r"\boxed{50}")
    (True, False)
    >>> matches_gold("(2,3)", r"\boxed{\{2,3\}}")
    False
    >>> matches_gold("7", r"\boxed{7\%}"), matches_gold("7", r"\boxed{7\%}", question="What percentage is it?")
    (False, True)

    Args:
        tolerances: maximum differences from the gold numbers; for several answers, one for each or one for all.
        question: the task's question. If it asks for a percentage, 7 % equals 7. If it asks for a point, (0, 1) is not
            an interval.
    """
    expected, answer = _to_formula(gold), _extract_answer(written)
    if not answer.strip("$") or len(answer) > MAX_LENGTH or (is_too_large(answer) and not is_too_large(expected)):
        return False
    is_text = _WORDS.fullmatch(gold.strip())
    if is_text and strip_markup(gold).casefold() in map(str.casefold, answer_candidates(written)):
        return True
    if _equal_exact(expected, answer, question):
        return True
    return bool(tolerances) and _equal_approximate(expected, answer, tolerances)


def _equal_exact(expected: str, answer: str, question: str = "") -> bool:
    no_solution = same_no_solution(expected, answer)
    if no_solution is not None:
        return no_solution
    gold_set, answer_set = _parse_set(expected), _parse_set(answer)
    if gold_set is not None and answer_set is not None:
        variables = gold_set[1], answer_set[1]
        return bool(gold_set[0] == answer_set[0]) and (variables[0] == variables[1] or not all(variables))
    if bracket_kind(expected) == "(" and not bracket_kind(answer) and len(split_elements(answer)) > 1:
        if is_interval(expected) or (is_open_interval(expected) and expects_interval(question)):
            return False
        answer = f"$({answer.strip('$')})$"  # a list without brackets counts as an ordered pair
    answer = strip_implied_base(answer, expected, question)
    is_different = has_different_notation(expected, answer)
    if is_different is not None:
        return not is_different
    if "=" in answer:
        answer = _chain_result(answer, expected)
    (expected, gold_is_percent), (answer, answer_is_percent) = strip_percent(expected), strip_percent(answer)
    compare_sets = is_interval(expected) or (is_open_interval(expected) and not expects_pair(question))
    if gold_is_percent == answer_is_percent or (answer_is_percent and expects_percent(question)):
        return _verify(expected, answer, compare_sets)
    gold_formula, answer_formula = (
        f"${formula.strip('$')}/100$" if is_percent else formula
        for formula, is_percent in ((expected, gold_is_percent), (answer, answer_is_percent))
    )
    return (gold_is_percent and _verify(expected, answer, compare_sets)) or _verify(
        gold_formula, answer_formula, compare_sets
    )


def _verify(expected: str, answer: str, compare_sets: bool) -> bool:
    parsed_gold, parsed_answer = _parse(strip_words(expected)), _parse(strip_words(answer))
    return bool(verify(parsed_gold, parsed_answer, allow_set_relation_comp=compare_sets, timeout_seconds=None))


def _parse_set(formula: str) -> tuple[Set, set[Basic]] | None:
    """Return the set of real numbers in an answer, with its variables.

    Supported are an interval, inequalities joined by "or", and unions. The result is None for anything else.
    """
    if not _SET_NOTATION.search(formula):
        return None
    parts = filter(str.strip, _OR.split(formula.strip("$")))
    sets, variables = list[Set](), set[Basic]()
    for part in parts:
        parsed = _parse(f"${part}$")
        value = parsed[0] if parsed else None
        if isinstance(value, Relational | And) and len(value.free_symbols) == 1:
            variables |= value.free_symbols
            value = value.as_set()
        if not isinstance(value, Interval | Union):
            return None
        sets.append(value)
    return (Union(*sets), variables) if sets else None


def _chain_result(answer: str, expected: str) -> str:
    """Return the result of a chain of equations between numbers; "" if two sides differ.

    Other formulas with an equals sign are returned unchanged.
    """
    sides = _EQUALS.split(answer.strip("$"))
    values = [(value, "." in side) for side in sides if (value := _evaluate(side)) is not None]
    for (left, left_is_decimal), (right, right_is_decimal) in pairwise(values):
        tolerance = ROUNDING_TOLERANCE if left_is_decimal or right_is_decimal else 1e-9
        if abs(left - right) > tolerance * max(abs(left), abs(right)):
            return ""
    return f"${sides[-1]}$" if len(values) == len(sides) > 1 and "=" not in expected else answer


def _equal_approximate(expected: str, answer: str, tolerances: Sequence[float]) -> bool:
    """Return True if each gold answer matches a different stated answer within tolerance.

    The rule is that of OlympiadBench's judge.
    """
    golds, candidates = (_expand_signs(split_elements(formula)) for formula in (expected, answer))
    if len(golds) != len(candidates):
        return False
    limits = list(tolerances) if len(tolerances) == len(golds) else [tolerances[0]] * len(golds)
    for gold, tolerance in zip(golds, limits, strict=True):
        match = next((candidate for candidate in candidates if _within_tolerance(gold, candidate, tolerance)), None)
        if match is None:
            return False
        candidates.remove(match)
    return True


def _expand_signs(elements: Sequence[str]) -> list[str]:
    """Split each answer with ± into two."""
    return [element.replace("\\pm", sign) for element in elements for sign in ("+-" if "\\pm" in element else "+")]


def _within_tolerance(gold: str, answer: str, tolerance: float) -> bool:
    numbers = [_evaluate(formula) for formula in (gold, answer)]
    if numbers[0] is None or numbers[1] is None:
        return _equal_exact(f"${gold}$", f"${answer}$")
    return bool(abs(numbers[0] - numbers[1]) <= tolerance * TOLERANCE_FACTOR)


def _evaluate(formula: str) -> float | None:
    """Evaluate a formula to a float. The result is None if the value is not a real number."""
    parsed = _parse(f"${formula}$")
    value = parsed[0] if parsed else None
    if isinstance(value, Eq):
        value = value.rhs
    return float(value) if isinstance(value, Expr) and value.is_number and value.is_real else None


def _extract_answer(text: str) -> str:
    """Extract the stated answer from a text, in a single formula; "" without an answer."""
    text = strip_reasoning(text)
    marked = find_answer(text)
    if marked is not None:
        return _to_formula(marked) if marked else ""
    text = text.replace("\\$", "")  # a currency sign instead of the end of a formula
    statement = text_after_statement(text)
    if statement is not None:
        text = strip_explanation(_CORRECTION.sub("", _first_sentence(statement)))
    formulas = list(_FORMULA.finditer(text))
    if _is_rejected(text, formulas[-1:] or _last_number(text)):
        return ""
    if formulas:
        last = [formulas[-1]]
        for before in reversed(formulas[:-1]):
            if not is_separator(text[before.end() : last[0].start()]):
                break
            last.insert(0, before)
        return _to_formula(", ".join(next(filter(None, match.groups())) for match in last))
    if statement is not None:
        return _to_formula(text)
    line = text.rstrip().rpartition("\n")[2]
    bold = find_bold(line)
    if bold and any(sign.isdigit() for sign in bold):
        return _to_formula(bold)
    if _ALTERNATIVES.search(line):
        return ""
    formula = _to_formula(line)
    return text[-MAX_LENGTH:] if _WORD.search(_CONNECTIVES.sub(",", strip_words(formula))) else formula


def _last_number(text: str) -> list[re.Match[str]]:
    return list(_DIGIT_RUN.finditer(text, text.rstrip().rfind("\n") + 1))[-1:]


def _is_rejected(text: str, last: Sequence[re.Match[str]]) -> bool:
    """Return True if a text rejects its last number or formula."""
    return any(is_negated(text, *match.span()) for match in last)


def _to_formula(answer: str) -> str:
    """Return an answer between dollar signs, without currency signs, a full stop or an approximation."""
    exact, _, approximate = normalize_formula(answer).partition("\\approx")
    return f"${(exact.strip() or approximate.strip()).removesuffix('.').strip()}$"


def _first_sentence(text: str) -> str:
    """Return the text up to a full stop or line end, without splitting a matrix."""
    end = _SENTENCE_END.search(text)
    return text[: end.start()] if end else text


def _parse(text: str) -> list[object]:
    parsed: list[object] = parse(text, parsing_timeout=None)
    return [_to_fractions(expression) for expression in parsed]


def _to_fractions(parsed: object) -> object:
    """Convert decimals in an expression to exact fractions: 0.5 → 1/2, and 0.333 stays different from 1/3."""
    if not isinstance(parsed, Basic | MatrixBase):
        return parsed
    decimals = parsed.atoms(Float)
    return parsed.xreplace({number: Rational(str(number)) for number in decimals}) if decimals else parsed
