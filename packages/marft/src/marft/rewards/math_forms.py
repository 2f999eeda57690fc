"""Math notation that math-verify ignores: units, number bases, and the difference between lists, sets and pairs.

Pure functions of formulas between dollar signs.
"""

from __future__ import annotations

import re
from fractions import Fraction
from unicodedata import normalize

from marft.rewards.quantities import quantities_in
from marft.rewards.units import Unit, unit_of

MOST_DIGITS = 4  # maximum number of digits in an evaluated exponent
DEEPEST = 40  # maximum nesting of brackets
_POWER = re.compile(r"(?<=\^\{)(\d{1,9})\^(?:\{(\d{1,9})\}|(\d))(?=\})")  # in an exponent
_LARGE = re.compile(rf"\^(?:\{{[-+]?)?\d{{{MOST_DIGITS + 1}}}|(?<![.\d])\d{{{MOST_DIGITS + 1},}}!")
_RECURRING = re.compile(r"(?<!\d)(\d{1,9})\.(\d{0,9})\\(?:overline|bar|dot)\s*\{?(\d{1,9})\}?")
_EXPONENT = re.compile(r"(?<![\w\\.])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})(?![\w.])")
_SPACING = re.compile(r"\\left|\\right|\\[,;:! ]|[\s$]")
_THOUSANDS = re.compile(r"(?<=\d),(?:\\!)?\s*(?=\d{3}(?!\d))")
_BASE = re.compile(r"(-?)(?:\\text\{)?([0-9A-Z]+)\}?_\{?(\d{1,2})\}?")
_NUMBER = re.compile(r"\$\s*-?[\d.,]+\s*\$")
_WORDED = re.compile(r"\d.*?\\(?:text|mbox|mathrm|textrm|rm)\s*\{([^{}]{1,60})\}\s*(?:\^\s*\{?(\d)\}?)?\$$", re.DOTALL)
_BARE = re.compile(r"\$-?[\d.,/]+\s+([A-Za-z][A-Za-z/ ]{0,30})(?:\^\s*\{?(\d)\}?)?\$")
_SCALE = re.compile(r"\d\s*(?:\\text\{\s*)?(?:thousand|million|billion|trillion|hundred|dozen)\b", re.IGNORECASE)
NEAR = Fraction(1, 10**6)  # relative tolerance for a value in another unit
_GROUPS = re.compile(
    r"(?<![\d.,])\d{1,3}"
    r"(?:(?:(?:\{,\}|\\[,!;: ]|\\(?:thin|med)?space\s*|[~_ \u00a0\u2009\u202f])\d{3})+|(?:\.\d{3}){2,})(?!\d)"
)
_SIGNS = {
    "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ",
    "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "°": r"^\circ", "±": r"\pm ",
    "≈": r"\approx ", "∈": r"\in ", "²": "^2", "³": "^3", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "％": "%", "（": "(", "）": ")", "，": ",", "：": ":", "⁄": "/",
}  # fmt: skip
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+|[A-Za-z]))")
_AROUND = re.compile(r"\s*(?:\*\*|__|`|\$\$|\$|\\\[|\\\()(.+?)(?:\*\*|__|`|\$\$|\$|\\\]|\\\))[.。]?\s*", re.DOTALL)
_PYTHON_ROOT = re.compile(r"(?<![\\A-Za-z_])sqrt\(([^()]*)\)")
_WORDED_NUMBER = re.compile(r"\\(?:text|mbox|mathrm)\s*\{\s*([\d.,]+)\s+([A-Za-z][A-Za-z ]*?)\s*\}")
_OUTWARD = re.compile(r"([\[\](])\s*([^\[\]()]+,[^\[\]()]+?)\s*([\[\])])")  # ]0,1[ is open on both sides
_LONE_RELATION = re.compile(r"\$\s*(?:[<>≤≥]|\\(?:le|ge|leq|geq|lt|gt|leqslant|geqslant)\b)")
_HELD = re.compile(r"\\\{\s*(?!\\\})\S")  # a non-empty set
_MEMBER = re.compile(r"^\s*[A-Za-z]\s*\\in\s*(?=[(\[{\\])")
_PERCENT = re.compile(
    r"\s*(?:\\?%|\\(?:text|mbox|mathrm)\s*\{\s*(?:\\?%|per\s?cent)\s*\}|\bper\s?cent\b)", re.IGNORECASE
)
_NUMBER_AND_WORDS = re.compile(
    r"(\$\s*[-+]?(?:[\d.,]+(?:\s*/\s*\d+)?|\\[dt]?frac\s*(?:\{\d+\}\s*\{\d+\}|\d\d)))"
    r"\s*([A-Za-z]{2,}(?:[ -][A-Za-z]+){0,4})\s*\$"
)
_OF_MATHEMATICS = frozenset(
    [
        "pi",
        "or",
        "and",
        "sin",
        "cos",
        "tan",
        "log",
        "ln",
        "exp",
        "sqrt",
        "mod",
        "infinity",
        "thousand",
        "million",
        "billion",
        "trillion",
        "hundred",
        "dozen",
        "half",
        "third",
        "thirds",
        "quarter",
        "quarters",
        "percent",
        "choose",
        "factorial",
        "squared",
        "cubed",
        "times",
        "over",
        "to",
    ]
)
_WORDS_ALONE = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mbox|rm)\s*\{([^{}]*)\}")
_NOTHINGS = (
    frozenset({
        "emptyset", "varnothing", "theemptyset",
        "none", "",
    }),
    frozenset({"undefined", "doesnotexist", "dne", "notdefined", "limitdoesnotexist", "thelimitdoesnotexist"}),
)  # fmt: skip
_NO_SOLUTION = re.compile(
    r"(?:(?:thereis|thereare|has|(?:the|this)(?:equation|system|inequality)has|itisimpossible|impossible)*"
    r"no(?:such|real|integer|valid|possible|positive|rational|complex)*"
    r"(?:solutions?|roots?|numbers?|integers?|values?|(?<=such)[a-z]))(?:exists?|ofx|atall)?|impossible"
)
_ASKS_PERCENT = re.compile(r"(?<![\d$}]\s)(?<![\d$}-])\bper\s?cent(?:age)?s?\b|\$?\b[a-zA-Z]\$?\s*\\?%", re.IGNORECASE)
_ASKS_INTERVAL = re.compile(r"\b(?:intervals?|domain|range)\b", re.IGNORECASE)
_ASKS_PAIR = re.compile(
    r"\b(?:ordered\s+(?:pairs?|triples?)|points?|coordinates?|vectors?|pairs?)\b|\(x,\s*y", re.IGNORECASE
)


def plain_formula(answer: str) -> str:
    r"""Return an answer in LaTeX notation, without Markdown, dollar signs and thousands separators.

    >>> plain_formula("**1 000 000**"), plain_formula(r"\[x \in (0,1)\]"), plain_formula("2√3")
    ('1000000', '(0,1)', '2\\sqrt{3}')
    """
    answer = answer.replace("\\$", "")
    while (inside := _AROUND.fullmatch(answer)) and not re.search(r"\$|\*\*|\\[\])]", inside[1]):
        answer = inside[1]
    answer = answer if answer.count("$") == 2 else answer.replace("$", "")
    answer = _EXPONENT.sub(
        r"\1\\times 10^{\2}", _RECURRING.sub(_as_fraction, re.sub(r"\\(?:vee|lor)\b|∨", ",", answer))
    )
    answer = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2]}}}", answer)
    answer = _WORDED_NUMBER.sub(r"\1\\text{ \2}", _PYTHON_ROOT.sub(r"\\sqrt{\1}", answer))
    answer = re.sub("[\u2150-\u215e]", _as_written_fraction, answer)
    answer = "".join(_SIGNS.get(sign, sign) for sign in answer)
    answer = _GROUPS.sub(lambda number: re.sub(r"\D", "", number[0]), " ".join(answer.split()))
    return _facing_inward(_MEMBER.sub("", answer))


def _facing_inward(answer: str) -> str:
    """Return an interval with outward square brackets replaced by round ones."""
    found = _OUTWARD.fullmatch(answer)
    if found is None:
        return answer
    return f"{found[1].replace(']', '(')}{found[2]}{found[3].replace('[', ')')}"


def _as_written_fraction(sign: re.Match[str]) -> str:
    """Return the LaTeX fraction for a sign like ⅓."""
    over, _, under = normalize("NFKC", sign[0]).partition("⁄")
    return rf"\frac{{{over}}}{{{under}}}"


def _as_fraction(decimal: re.Match[str]) -> str:
    """Convert a recurring decimal to a fraction: 0.1666… → 15/90."""
    whole, fixed, again = decimal.groups()
    top = int(whole + fixed + again) - int(whole + fixed)
    return rf"\frac{{{top}}}{{{(10 ** len(again) - 1) * 10 ** len(fixed)}}}"


def is_endless(formula: str) -> bool:
    """Return True if a formula is too large to evaluate.

    It is too large if it is nested deeper than ``DEEPEST``, or has an exponent or factorial of more than
    ``MOST_DIGITS`` digits.

    >>> is_endless("$9^{9^{9^{9}}}$"), is_endless("$2^{2023}$"), is_endless("$2^{2^{2}}$")
    (True, False, False)
    """
    depth = deepest = 0
    for sign in formula:
        depth += (sign in "{([") - (sign in "})]")
        deepest = max(depth, deepest)
    plain = _SPACING.sub("", formula)
    for _ in range(DEEPEST):
        plain = _POWER.sub(_worked_out, plain)
    return deepest > DEEPEST or _LARGE.search(plain) is not None


def _worked_out(power: re.Match[str]) -> str:
    """Evaluate a power in an exponent. For a large power, only the number of digits matters."""
    base, exponent = int(power[1]), int(power[2] or power[3])
    small = exponent * len(power[1]) <= 3 * MOST_DIGITS
    return str(base**exponent) if small else "9" * (MOST_DIGITS + 1)


def same_nothing(expected: str, stated: str) -> bool | None:
    r"""Return True if both answers deny a solution in the same way.

    The result is False if they differ, and None if neither answer denies a solution.

    >>> same_nothing(r"$\text{no solution}$", r"$\emptyset$"), same_nothing("$0$", r"$\{\}$"), same_nothing("1", "1")
    (True, False, None)
    """
    ways = [_nothing(_bare_words(formula)) for formula in (expected, stated)]
    return ways[0] is ways[1] if any(way is not None for way in ways) else None


def _nothing(words: str) -> frozenset[str] | None:
    """Return the kind of denial in a text. The result is None without a denial."""
    known = _NOTHINGS[0] if _NO_SOLUTION.fullmatch(words) else None
    return known or next((way for way in _NOTHINGS if words in way), None)


def _bare_words(formula: str) -> str:
    """Return the letters in a purely verbal formula; otherwise "0"."""
    if _HELD.search(formula):
        return "0"
    plain = _WORDS_ALONE.sub(r"\1", formula.strip("$ ")).replace("\\", "").strip(" .!")
    return re.sub(r"[\s{}~,]", "", plain).casefold() if re.fullmatch(r"[A-Za-z\s{}~,']*", plain) else "0"


def without_percent(formula: str) -> tuple[str, bool]:
    r"""Return a formula without percent signs, and True if a sign was removed.

    >>> without_percent(r"$7\%$"), without_percent("$7$")
    (('$7$', True), ('$7$', False))
    """
    plain = _PERCENT.sub("", formula)
    return plain, plain != formula


def without_words(formula: str) -> str:
    """Return a number without the counted noun behind it.

    >>> without_words("$18 dollars$"), without_words("$18 million$"), without_words("$2 pi$")
    ('$18$', '$18 million$', '$2 pi$')
    """
    found = _NUMBER_AND_WORDS.fullmatch(formula)
    if found is None or _OF_MATHEMATICS & set(found[2].lower().replace("-", " ").split()):
        return formula
    return f"{found[1]}$"


def asks_for_percentage(question: str) -> bool:
    """Return True if a question asks for a percentage, instead of only giving one.

    >>> asks_for_percentage("What percent of 8 is 2?"), asks_for_percentage("What is 20 percent of 8, or 20% of it?")
    (True, False)
    """
    return _ASKS_PERCENT.search(question) is not None


def asks_for_pair(question: str) -> bool:
    """Return True if a question asks for points or pairs, which look like open intervals."""
    return _ASKS_PAIR.search(question) is not None


def asks_for_interval(question: str) -> bool:
    """Return True if a question asks for an interval, which excludes a list with two numbers."""
    return _ASKS_INTERVAL.search(question) is not None


def is_open_interval(formula: str) -> bool:
    """Return True for a possible open interval: two numbers in round brackets, the smaller one first."""
    found = re.fullmatch(r"\((-?[\d.]+),(-?[\d.]+)\)", _SPACING.sub("", formula))
    try:
        return found is not None and Fraction(found[1]) < Fraction(found[2])
    except (ValueError, ZeroDivisionError):
        return False


def told_apart(expected: str, stated: str) -> bool | None:
    r"""Return True if two answers differ in notation that math-verify ignores.

    False means that they are equal. None means that math-verify has to decide.

    >>> told_apart("$-1,3,3$", "$-1,3$"), told_apart("$101_2$", "$101_{2}$"), told_apart("$(1,2)$", r"$\{1,2\}$")
    (True, False, True)
    >>> told_apart(r"$5\text{ m}$", r"$5\text{ cm}$"), told_apart("$5$", r"$5\text{ cm}$")
    (True, None)
    """
    listed = not brackets(expected) and len(elements(expected)) > 1
    if (
        (listed and brackets(stated) == "(")
        or {brackets(expected), brackets(stated)} == {"(", "{"}
        or (_LONE_RELATION.match(stated) and not _LONE_RELATION.match(expected))
        or _repeated(expected) != _repeated(stated)
    ):
        return True
    one, other = (_BASE.fullmatch(_SPACING.sub("", formula)) for formula in (expected, stated))
    if one and other:  # the question asks for this base, so the same number in another base is wrong
        return one.groups() != other.groups()
    if other and _NUMBER.fullmatch(expected):
        return True
    if any(_SCALE.search(formula) for formula in (expected, stated)):
        return not _same_quantity(expected, stated)
    units = [_unit(formula) for formula in (expected, stated)]
    if units[0] is None or units[1] is None or units[0] == units[1]:
        return None
    return not _same_quantity(expected, stated)


def without_base(stated: str, expected: str, question: str) -> str:
    """Return a number without its base, if the gold answer has no base and the question mentions bases.

    >>> without_base("$18_2$", "$18$", "Write it in base 2."), without_base("$18_2$", "$18$", "")
    ('$18$', '$18_2$')
    """
    one, other = (_BASE.fullmatch(_SPACING.sub("", formula)) for formula in (expected, stated))
    return f"${other[1]}{other[2]}$" if other and not one and "base" in question.casefold() else stated


def brackets(formula: str) -> str:
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


def elements(formula: str) -> list[str]:
    """Split a list without brackets into its elements; thousands separators do not split.

    >>> elements("$-1, (2,3)$"), elements("$1,234$")
    (['-1', '(2,3)'], ['1234'])
    """
    depth, found = 0, [""]
    for sign in _SPACING.sub("", _THOUSANDS.sub("", formula)):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            found.append("")
        else:
            found[-1] += sign
    return found


def _repeated(formula: str) -> int:
    """Return the number of duplicate elements in a list without brackets.

    >>> _repeated("$-1,3,3$"), _repeated("$(1,1)$")
    (1, 0)
    """
    found = elements(formula)
    return len(found) - len(set(found))


def _unit(formula: str) -> Unit | None:
    """Return the unit at the end of a formula. The result is None without a known unit."""
    found = _WORDED.search(formula) or _BARE.fullmatch(formula)
    return unit_of(found[1].strip() + (found[2] or "")) if found else None


def _same_quantity(expected: str, stated: str) -> bool:
    """Return True if two formulas with a single quantity each have equal values."""
    right, given = quantities_in(expected), quantities_in(stated)
    comparable = len(right) == len(given) == 1 and right[0].unit.dimensions == given[0].unit.dimensions
    return comparable and abs(right[0].in_base_units - given[0].in_base_units) <= NEAR * abs(right[0].in_base_units)
