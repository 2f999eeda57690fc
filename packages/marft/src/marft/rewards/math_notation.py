"""Math notation that math-verify ignores: units, number bases, and the difference between lists, sets and pairs.

Pure functions of formulas between dollar signs.
"""

from __future__ import annotations

import re
from fractions import Fraction
from unicodedata import normalize

from marft.rewards.quantities import Unit, parse_quantities, parse_unit

MAX_EXPONENT_DIGITS = 4  # maximum number of digits in an evaluated exponent
MAX_DEPTH = 40  # maximum nesting of brackets
_POWER = re.compile(r"(?<=\^\{)(\d{1,9})\^(?:\{(\d{1,9})\}|(\d))(?=\})")  # in an exponent
_LARGE_EXPONENT = re.compile(
    rf"\^(?:\{{[-+]?)?\d{{{MAX_EXPONENT_DIGITS + 1}}}|(?<![.\d])\d{{{MAX_EXPONENT_DIGITS + 1},}}!"
)
_REPEATING_DECIMAL = re.compile(r"(?<!\d)(\d{1,9})\.(\d{0,9})\\(?:overline|bar|dot)\s*\{?(\d{1,9})\}?")
_EXPONENT = re.compile(r"(?<![\w\\.])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})(?![\w.])")
_SPACING = re.compile(r"\\left|\\right|\\[,;:! ]|[\s$]")
_DIGIT_GROUP_COMMA = re.compile(r"(?<=\d),(?:\\!)?\s*(?=\d{3}(?!\d))")
_NUMBER_WITH_BASE = re.compile(r"(-?)(?:\\text\{)?([0-9A-Z]+)\}?_\{?(\d{1,2})\}?")
_NUMBER = re.compile(r"\$\s*-?[\d.,]+\s*\$")
_NUMBER_WITH_UNIT = re.compile(
    r"\d.*?\\(?:text|mbox|mathrm|textrm|rm)\s*\{([^{}]{1,60})\}\s*(?:\^\s*\{?(\d)\}?)?\$$", re.DOTALL
)
_NUMBER_WITH_WORD = re.compile(r"\$-?[\d.,/]+\s+([A-Za-z][A-Za-z/ ]{0,30})(?:\^\s*\{?(\d)\}?)?\$")
_SCALE = re.compile(r"\d\s*(?:\\text\{\s*)?(?:thousand|million|billion|trillion|hundred|dozen)\b", re.IGNORECASE)
UNIT_TOLERANCE = Fraction(1, 10**6)  # relative tolerance for a value in another unit
_GROUPED_DIGITS = re.compile(
    r"(?<![\d.,])\d{1,3}"
    r"(?:(?:(?:\{,\}|\\[,!;: ]|\\(?:thin|med)?space\s*|[~_ \u00a0\u2009\u202f])\d{3})+|(?:\.\d{3}){2,})(?!\d)"
)
_UNICODE_TO_LATEX = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ",
    "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "°": r"^\circ", "±": r"\pm ",
    "≈": r"\approx ", "∈": r"\in ", "²": "^2", "³": "^3", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "％": "%", "（": "(", "）": ")", "，": ",", "：": ":", "⁄": "/",
}  # fmt: skip
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))")
_DELIMITERS = re.compile(r"\s*(?:\*\*|__|`|\$\$|\$|\\\[|\\\()(.+?)(?:\*\*|__|`|\$\$|\$|\\\]|\\\))[.。]?\s*", re.DOTALL)
_PYTHON_ROOT = re.compile(r"(?<![\\A-Za-z_])sqrt\(([^()]*)\)")
_NUMBER_IN_TEXT = re.compile(r"\\(?:text|mbox|mathrm)\s*\{\s*([\d.,]+)\s+([A-Za-z][A-Za-z ]*?)\s*\}")
_REVERSED_BRACKETS = re.compile(r"([\[\](])\s*([^\[\]()]+,[^\[\]()]+?)\s*([\[\])])")  # ]0,1[ is open on both sides
_LEADING_RELATION = re.compile(r"\$\s*(?:[<>≤≥]|\\(?:le|ge|leq|geq|lt|gt|leqslant|geqslant)\b)")
_NONEMPTY_SET = re.compile(r"\\\{\s*(?!\\\})\S")  # a non-empty set
_SET_MEMBERSHIP = re.compile(r"^\s*[A-Za-z]\s*\\in\s*(?=[(\[{\\])")
_PERCENT = re.compile(
    r"\s*(?:\\?%|\\(?:text|mbox|mathrm)\s*\{\s*(?:\\?%|per\s?cent)\s*\}|\bper\s?cent\b)", re.IGNORECASE
)
_NUMBER_AND_WORDS = re.compile(
    r"(\$\s*[-+]?(?:[\d.,]+(?:\s*/\s*\d+)?|\\[dt]?frac\s*(?:\{\d+\}\s*\{\d+\}|\d\d)))"
    r"\s*([A-Za-z]{2,}(?:[ -][A-Za-z]+){0,4})\s*\$"
)
_MATH_WORD = re.compile(
    r"\b(?:pi|or|and|sin|cos|tan|log|ln|exp|sqrt|mod|infinity|thousand|million|billion|trillion|hundred|dozen|half|thirds?"
    r"|quarters?|percent|choose|factorial|squared|cubed|times|over|to)\b",
    re.IGNORECASE,
)
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mbox|rm)\s*\{([^{}]*)\}")
_NO_SOLUTION_KINDS = (
    frozenset({"emptyset", "varnothing", "theemptyset", "none", ""}),
    frozenset({"undefined", "doesnotexist", "dne", "notdefined", "limitdoesnotexist", "thelimitdoesnotexist"}),
)
_NO_SOLUTION = re.compile(
    r"(?:(?:thereis|thereare|has|(?:the|this)(?:equation|system|inequality)has|itisimpossible|impossible)*"
    r"no(?:such|real|integer|valid|possible|positive|rational|complex)*"
    r"(?:solutions?|roots?|numbers?|integers?|values?|(?<=such)[a-z]))(?:exists?|ofx|atall)?|impossible"
)
_PERCENT_QUESTION = re.compile(
    r"(?<![\d$}]\s)(?<![\d$}-])\bper\s?cent(?:age)?s?\b|\$?\b[a-zA-Z]\$?\s*\\?%", re.IGNORECASE
)
_INTERVAL_QUESTION = re.compile(r"\b(?:intervals?|domain|range)\b", re.IGNORECASE)
_PAIR_QUESTION = re.compile(
    r"\b(?:ordered\s+(?:pairs?|triples?)|points?|coordinates?|vectors?|pairs?)\b|\(x,\s*y", re.IGNORECASE
)


def normalize_formula(answer: str) -> str:
    r"""Return an answer in LaTeX notation, without Markdown, dollar signs and thousands separators.

    >>> normalize_formula("**1 000 000**"), normalize_formula(r"\[x \in (0,1)\]"), normalize_formula("2√3")
    ('1000000', '(0,1)', '2\\sqrt{3}')
    """
    answer = answer.replace("\\$", "")
    while (inside := _DELIMITERS.fullmatch(answer)) and not re.search(r"\$|\*\*|\\[\])]", inside[1]):
        answer = inside[1]
    answer = answer if answer.count("$") == 2 else answer.replace("$", "")
    answer = _EXPONENT.sub(
        r"\1\\times 10^{\2}", _REPEATING_DECIMAL.sub(_decimal_to_fraction, re.sub(r"\\(?:vee|lor)\b|∨", ",", answer))
    )
    answer = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2]}}}", answer)
    answer = _NUMBER_IN_TEXT.sub(r"\1\\text{ \2}", _PYTHON_ROOT.sub(r"\\sqrt{\1}", answer))
    answer = re.sub("[\u2150-\u215e]", _unicode_fraction, answer)
    answer = "".join(_UNICODE_TO_LATEX.get(sign, sign) for sign in answer)
    answer = _GROUPED_DIGITS.sub(lambda number: re.sub(r"\D", "", number[0]), " ".join(answer.split()))
    return _normalize_brackets(_SET_MEMBERSHIP.sub("", answer))


def _normalize_brackets(answer: str) -> str:
    """Return an interval with outward square brackets replaced by round ones."""
    match = _REVERSED_BRACKETS.fullmatch(answer)
    if match is None:
        return answer
    return f"{match[1].replace(']', '(')}{match[2]}{match[3].replace('[', ')')}"


def _unicode_fraction(sign: re.Match[str]) -> str:
    """Return the LaTeX fraction for a sign like ⅓."""
    numerator, _, denominator = normalize("NFKC", sign[0]).partition("⁄")
    return rf"\frac{{{numerator}}}{{{denominator}}}"


def _decimal_to_fraction(decimal: re.Match[str]) -> str:
    """Convert a recurring decimal to a fraction: 0.1666… → 15/90."""
    integer, fixed, repeating = decimal.groups()
    numerator = int(integer + fixed + repeating) - int(integer + fixed)
    return rf"\frac{{{numerator}}}{{{(10 ** len(repeating) - 1) * 10 ** len(fixed)}}}"


def is_too_large(formula: str) -> bool:
    """Return True if a formula is too large to evaluate.

    It is too large if it is nested deeper than ``MAX_DEPTH``, or has an exponent or factorial of more than
    ``MAX_EXPONENT_DIGITS`` digits.

    >>> is_too_large("$9^{9^{9^{9}}}$"), is_too_large("$2^{2023}$"), is_too_large("$2^{2^{2}}$")
    (True, False, False)
    """
    depth = max_depth = 0
    for sign in formula:
        depth += (sign in "{([") - (sign in "})]")
        max_depth = max(depth, max_depth)
    plain = _SPACING.sub("", formula)
    for _ in range(MAX_DEPTH):
        plain = _POWER.sub(_evaluate_power, plain)
    return max_depth > MAX_DEPTH or _LARGE_EXPONENT.search(plain) is not None


def _evaluate_power(power: re.Match[str]) -> str:
    """Evaluate a power in an exponent. For a large power, only the number of digits matters."""
    base, exponent = int(power[1]), int(power[2] or power[3])
    small = exponent * len(power[1]) <= 3 * MAX_EXPONENT_DIGITS
    return str(base**exponent) if small else "9" * (MAX_EXPONENT_DIGITS + 1)


def same_no_solution(expected: str, answer: str) -> bool | None:
    r"""Return True if both answers deny a solution in the same way.

    The result is False if they differ, and None if neither answer denies a solution.

    >>> same_no_solution(r"$\text{no solution}$", r"$\emptyset$"), same_no_solution("$0$", r"$\{\}$")
    (True, False)
    >>> same_no_solution("1", "1")
    """
    kinds = [_no_solution_kind(_extract_words(formula)) for formula in (expected, answer)]
    return kinds[0] is kinds[1] if any(kind is not None for kind in kinds) else None


def _no_solution_kind(words: str) -> frozenset[str] | None:
    """Return the kind of denial in a text. The result is None without a denial."""
    kind = _NO_SOLUTION_KINDS[0] if _NO_SOLUTION.fullmatch(words) else None
    return kind or next((candidate for candidate in _NO_SOLUTION_KINDS if words in candidate), None)


def _extract_words(formula: str) -> str:
    """Return the letters in a purely verbal formula; otherwise "0"."""
    if _NONEMPTY_SET.search(formula):
        return "0"
    plain = _TEXT_COMMAND.sub(r"\1", formula.strip("$ ")).replace("\\", "").strip(" .!")
    return re.sub(r"[\s{}~,]", "", plain).casefold() if re.fullmatch(r"[A-Za-z\s{}~,']*", plain) else "0"


def strip_percent(formula: str) -> tuple[str, bool]:
    r"""Return a formula without percent signs, and True if a sign was removed.

    >>> strip_percent(r"$7\%$"), strip_percent("$7$")
    (('$7$', True), ('$7$', False))
    """
    plain = _PERCENT.sub("", formula)
    return plain, plain != formula


def strip_words(formula: str) -> str:
    """Return a number without the counted noun behind it.

    >>> strip_words("$18 dollars$"), strip_words("$18 million$"), strip_words("$2 pi$")
    ('$18$', '$18 million$', '$2 pi$')
    """
    match = _NUMBER_AND_WORDS.fullmatch(formula)
    if match is None or _MATH_WORD.search(match[2]):
        return formula
    return f"{match[1]}$"


def expects_percent(question: str) -> bool:
    """Return True if a question asks for a percentage, instead of only giving one.

    >>> expects_percent("What percent of 8 is 2?"), expects_percent("What is 20 percent of 8, or 20% of it?")
    (True, False)
    """
    return _PERCENT_QUESTION.search(question) is not None


def expects_pair(question: str) -> bool:
    """Return True if a question asks for points or pairs, which look like open intervals."""
    return _PAIR_QUESTION.search(question) is not None


def expects_interval(question: str) -> bool:
    """Return True if a question asks for an interval, which excludes a list with two numbers."""
    return _INTERVAL_QUESTION.search(question) is not None


def is_open_interval(formula: str) -> bool:
    """Return True for a possible open interval: two numbers in round brackets, the smaller one first."""
    match = re.fullmatch(r"\((-?[\d.]+),(-?[\d.]+)\)", _SPACING.sub("", formula))
    try:
        return match is not None and Fraction(match[1]) < Fraction(match[2])
    except (ValueError, ZeroDivisionError):
        return False


def has_different_notation(expected: str, answer: str) -> bool | None:
    r"""Return True if two answers differ in notation that math-verify ignores.

    False means that they are equal. None means that math-verify has to decide.

    >>> has_different_notation("$-1,3,3$", "$-1,3$"), has_different_notation("$101_2$", "$101_{2}$")
    (True, False)
    >>> has_different_notation("$(1,2)$", r"$\{1,2\}$")
    True
    >>> has_different_notation(r"$5\text{ m}$", r"$5\text{ cm}$"), has_different_notation("$5$", r"$5\text{ cm}$")
    (True, None)
    """
    is_list = not bracket_kind(expected) and len(split_elements(expected)) > 1
    if (
        (is_list and bracket_kind(answer) == "(")
        or {bracket_kind(expected), bracket_kind(answer)} == {"(", "{"}
        or (_LEADING_RELATION.match(answer) and not _LEADING_RELATION.match(expected))
        or _count_duplicates(expected) != _count_duplicates(answer)
    ):
        return True
    gold_match, answer_match = _match_base(expected), _match_base(answer)
    if gold_match and answer_match:  # the question asks for this base, so the same number in another base is wrong
        return gold_match.groups() != answer_match.groups()
    if answer_match and _NUMBER.fullmatch(expected):
        return True
    if any(_SCALE.search(formula) for formula in (expected, answer)):
        return not _same_quantity(expected, answer)
    units = [_parse_unit(formula) for formula in (expected, answer)]
    if units[0] is None or units[1] is None or units[0] == units[1]:
        return None
    return not _same_quantity(expected, answer)


def strip_implied_base(answer: str, expected: str, question: str) -> str:
    """Return a number without its base, if the gold answer has no base and the question mentions bases.

    >>> strip_implied_base("$18_2$", "$18$", "Write it in base 2."), strip_implied_base("$18_2$", "$18$", "")
    ('$18$', '$18_2$')
    """
    answer_match = _match_base(answer)
    if answer_match and not _match_base(expected) and "base" in question.casefold():
        return f"${answer_match[1]}{answer_match[2]}$"
    return answer


def _match_base(formula: str) -> re.Match[str] | None:
    return _NUMBER_WITH_BASE.fullmatch(_SPACING.sub("", formula))


def bracket_kind(formula: str) -> str:
    """Return ``"("`` for a pair, point or open interval, ``"{"`` for a set, else ``""``."""
    plain = _SPACING.sub("", formula).replace("\\{", "{").replace("\\}", "}")
    return plain[0] if plain[:1] + plain[-1:] in ("()", "{}") else ""


def is_interval(formula: str) -> bool:
    r"""Return True if a formula can only be intervals, with a square bracket or an infinite end.

    >>> is_interval(r"$[1,2)$"), is_interval(r"$(5,\infty)$"), is_interval("$(1,2)$")
    (True, True, False)
    """
    plain = _SPACING.sub("", formula)
    return "," in plain and plain[:1] in ("(", "[") and ("[" in plain or "]" in plain or "\\infty" in plain)


def split_elements(formula: str) -> list[str]:
    """Split a list without brackets into its elements; thousands separators do not split.

    >>> split_elements("$-1, (2,3)$"), split_elements("$1,234$")
    (['-1', '(2,3)'], ['1234'])
    """
    depth, parts = 0, [""]
    for sign in _SPACING.sub("", _DIGIT_GROUP_COMMA.sub("", formula)):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _count_duplicates(formula: str) -> int:
    """Return the number of duplicate elements in a list without brackets.

    >>> _count_duplicates("$-1,3,3$"), _count_duplicates("$(1,1)$")
    (1, 0)
    """
    parts = split_elements(formula)
    return len(parts) - len(set(parts))


def _parse_unit(formula: str) -> Unit | None:
    """Return the unit at the end of a formula. The result is None without a known unit."""
    match = _NUMBER_WITH_UNIT.search(formula) or _NUMBER_WITH_WORD.fullmatch(formula)
    return parse_unit(match[1].strip() + (match[2] or "")) if match else None


def _same_quantity(expected: str, answer: str) -> bool:
    """Return True if two formulas with a single quantity each have equal values."""
    gold_quantities, answer_quantities = parse_quantities(expected), parse_quantities(answer)
    same_dimensions = (
        len(gold_quantities) == len(answer_quantities) == 1
        and gold_quantities[0].unit.dimensions == answer_quantities[0].unit.dimensions
    )
    return same_dimensions and abs(
        gold_quantities[0].in_base_units - answer_quantities[0].in_base_units
    ) <= UNIT_TOLERANCE * abs(gold_quantities[0].in_base_units)
