"""Text comparison with a gold answer: numbers, shared words, edit distance. Pure functions."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator
from decimal import Context, Decimal
from itertools import pairwise
from typing import NamedTuple
from unicodedata import category, combining, decimal, normalize

import regex

from marft.agents.answers import find_answer, find_bold, find_statement, is_negated
from marft.common.reasoning import strip_reasoning

_DIGIT_SPACE = "[ \u00a0\u2009\u202f'’]"
_GROUPED_INTEGER = (  # common notations: 1,234 and 12,34,567; 1 234; 1.234.567; 1234
    rf"(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])|[0-9]{{1,2}}(?:,[0-9]{{2}})+,[0-9]{{3}}(?![0-9])"
    rf"|[0-9]{{1,3}}(?:{_DIGIT_SPACE}[0-9]{{3}})+(?![0-9]))"
)
_NUMBER = (
    rf"(?:(?P<dots>[0-9]{{1,3}}(?:(?:\.[0-9]{{3}})+|(?:{_DIGIT_SPACE}[0-9]{{3}})+),[0-9]++|[0-9]{{1,3}}(?:\.[0-9]{{3}}){{2,}}(?![0-9]))"
    rf"|(?P<comma>[0-9]++,(?:[0-9]{{1,2}}|[0-9]{{4,}})(?![0-9]|,[0-9]))"
    rf"|{_GROUPED_INTEGER}(?:\.[0-9]++)?|[0-9]++(?:\.[0-9]++)?|\.[0-9]++)(?:[eE][-+−]?[0-9]++)?"
)
_SCIENTIFIC = (
    r"(?:\s*(?:[×x*·]|\\times|\\cdot)\s*10(?:\s*(?:\^|\*\*)\s*\{?\s*|(?=[⁻⁺⁰¹²³⁴-⁹]))"
    r"(?P<power>[-−+⁻⁺]?[0-9⁰¹²³⁴-⁹]{1,4})\s*\}?)?"
)
_EXPONENT = (
    r"(?:\s*(?:\^|\*\*)\s*(?:\{\s*(?P<braced>[-−]?[0-9]{1,3})\s*\}|"
    r"(?P<exponent>[-−]?[0-9]{1,3})(?![0-9.]))|(?P<raised>⁻?[⁰¹²³⁴-⁹]{1,3}))"
)
_UNNAMED_NUMBER = _NUMBER.replace("?P<dots>", "?:").replace("?P<comma>", "?:")
# letters that a number may follow directly
_ASIAN_LETTERS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff"
_NUMBERS = re.compile(
    rf"(?:(?<![\w.])|(?<=[{_ASIAN_LETTERS}]))(?P<sign>[-+−–－]?)[$€£¥]?(?P<inner>[-+−]?)"
    r"(?:(?P<ones>[0-9]++)[ -](?=[0-9]++/[0-9]))?"
    rf"(?P<number>{_NUMBER})(?:{_EXPONENT}|{_SCIENTIFIC})(?:\s*[/⁄]\s*(?P<divisor>{_UNNAMED_NUMBER}))?(?!\.[0-9])"
)
_MINUS_SIGNS = ("-", "−", "–", "－")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_UNSEGMENTED = "".join(
    f"\\p{{{name}}}" for name in ("Han", "Hiragana", "Katakana", "Thai", "Khmer", "Lao", "Myanmar", "Tibetan")
)
_NO_END_BOUNDARY = _UNSEGMENTED + r"\p{Hangul}"  # Korean has spaces before words, but none before particles
# between letters, a word boundary exists only next to a script without spaces
_WORD_START = rf"(?:(?<![^\W_]|[^\W_]_)|(?<=[{_UNSEGMENTED}])|(?=[{_UNSEGMENTED}]))"
_WORD_END = (
    r"(?:(?![^\W_]|_[^\W_]|[+#]+(?![^\W_]))"
    rf"|(?:(?<=[{_NO_END_BOUNDARY}])|(?=[{_NO_END_BOUNDARY}]))(?![\p{{M}}+#]|_[^\W_]))"
)
_WORD_PATTERN = regex.compile(
    rf"[{_UNSEGMENTED}]\p{{M}}*|\p{{Hangul}}|[^{_UNSEGMENTED}\p{{Hangul}}\s]+"
)  # a token in scripts without spaces
_LATEX_RULES = (
    (re.compile(r"(?<=[0-9])\s*\\[dtc]?frac"), " \\\\frac"),
    (re.compile(r"\\[dtc]?frac\s*\{\s*(-?[0-9.,]+)\s*\}\s*\{\s*([0-9.,]+)\s*\}"), r"\1/\2"),
    (re.compile(r"\\[dtc]?frac\s*([0-9])\s*([0-9])"), r"\1/\2"),
    (re.compile(r"(?<=[0-9])(?:\{,\}|,?\\[!,;: ]|~)(?=[0-9]{3}(?![0-9]))"), ","),
    (re.compile(r"\\(?:text|textrm|mathrm|mbox)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ\b)"), "°"),
    (re.compile(r"(?<=[0-9])(?=[¼-¾⅐-⅞])"), " "),
    *((re.compile(sign), normalize("NFKC", sign).replace("⁄", "/")) for sign in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"),
    (re.compile(r"\b(?:minus|negative)\s+(?=\$?\.?[0-9])(?<![0-9] minus )(?<![0-9]minus )", re.IGNORECASE), "-"),
    (re.compile(r"(?:(?<==)|(?<=\bis)|(?<=:))\s*[-−]\s+(?=\.?[0-9])", re.IGNORECASE), " -"),
    (re.compile(r"\\([$%#&])"), r"\1"),
    (re.compile(r"\\[!,;: ]"), " "),
)
_INSIDE_EXPRESSION = re.compile(r"(?:√|\\sqrt\s*\[|\\sqrt\s*(?:\[[^\]]*\])?\s*\{?|±|\\pm|\^\{?|_\{?)\s*$")
_EXPRESSION_SUFFIX = re.compile(
    r"\}?\s*(?:π|\\pi\b|\^|\*\*(?=[0-9({])|!(?!\w)(?=\S)|[²³⁴-⁹]|√|\\sqrt|(?:±|\\pm|\+/-)\s*[0-9.])"
)
_EQUATION_LINK = re.compile(  # all quantifiers are possessive, to avoid backtracking in long texts
    r"[\s()$\\.]*+(?:[^\W\d_]{2,}+\s*+){0,2}+(?:[()$\s]*+[-=+−–*/×÷·≈])++[\s($€£¥]*+"
)
_ALTERNATIVES = re.compile(  # two alternative numbers, of which neither is the answer
    r"\s*+(?:,|;|(?:,\s*+)?\(?(?:or|and|to|oder|bis|und|ou|et|o|y|或者?|到|至)(?:\s+(?:maybe|perhaps|possibly))?|[-–—~/&])\s*[$€£¥]?",
    re.IGNORECASE,
)
_EQUALS_OR_APPROX = re.compile(r"(?<![<>!])=|≈|\\approx")
_EQUAL_SIGN = re.compile("[=≈]")
_REJECTED = re.compile(r"\s*(?:not|never|neither|nor|none)\b", re.IGNORECASE)
_CORRECTION = re.compile(r"^\s*not\b[^.\n]{1,40}?\bbut\s+", re.IGNORECASE)
_SCALE_WORD = re.compile(
    r"(?:\s|-)*(?i:(hundred|thousand|million|billion|trillion|dozen)s?)\b|\s*(千(?![克米瓦卡])|百(?!分)|[万萬億亿])|(k|M|bn)(?!\w)"
)
_SCALE_VALUES = {
    "hundred": 100, "百": 100, "thousand": 10**3, "千": 10**3, "k": 10**3, "million": 10**6, "M": 10**6,
    "billion": 10**9, "bn": 10**9, "trillion": 10**12, "dozen": 12, "万": 10**4, "萬": 10**4, "億": 10**8, "亿": 10**8,
}  # fmt: skip
_MINUS_WORD = re.compile(r"\b(?:minus|negative)\s+$", re.IGNORECASE)
_LEADING_ZERO = re.compile(r"[-−+]?0[0-9]")
_NAME_SUFFIX = regex.compile(rf"_[0-9]|(?![{_NO_END_BOUNDARY}])[^\W_]")  # part of a name
_SUPERSCRIPTS = str.maketrans("−⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹", "--+0123456789")
_NUMBER_SIGN = re.compile(r"(?<=[0-9])\.(?=[0-9])|(?<![\w.)])[-−](?=\.?[0-9])")  # in numbers
_UNIFIED_SIGNS = str.maketrans("‐‑’‘“”", "--''\"\"") | {0xFF01 + place: 0x21 + place for place in range(94)}
MAX_NUMBER_LENGTH = 400  # maximum length of a number, in characters
_EXACT_CONTEXT = Context(prec=2 * MAX_NUMBER_LENGTH, traps=[])


class NumberSpan(NamedTuple):
    """Number found in a text, with its start and end, including sign and currency."""

    value: Decimal
    start: int
    end: int


def parse_numbers(text: str) -> list[Decimal]:
    """Return all numbers in a text, in order.

    Thousands separators, exponents, currency signs and fractions are parsed.

    >>> parse_numbers("from $1,234.50 to -3, or 1/4 of it")
    [Decimal('1234.50'), Decimal('-3'), Decimal('0.25')]
    >>> parse_numbers("1.234,5 and 1 000 and 1.5 × 10^3 and 2 1/2")
    [Decimal('1234.5'), Decimal('1000'), Decimal('1.5E+3'), Decimal('2.5')]
    """
    return [span.value for span in find_numbers(_to_ascii_digits(text))]


def find_numbers(text: str) -> Iterator[NumberSpan]:
    """Yield the numbers in a text with their positions, in order.

    An integer power is evaluated. Roots and multiples of π are skipped.
    """
    for match in _NUMBERS.finditer(text):
        value = _parse_decimal(match["number"], match["dots"] or match["comma"])
        exponent = match["braced"] or match["exponent"] or match["raised"]
        if exponent:
            value = _power(value, int(exponent.translate(_SUPERSCRIPTS)))
        if match["power"]:
            value = _EXACT_CONTEXT.scaleb(value, int(match["power"].translate(_SUPERSCRIPTS)))
        if match["divisor"]:
            value = _EXACT_CONTEXT.divide(value, _parse_decimal(match["divisor"]))
        if match["ones"]:
            value = _EXACT_CONTEXT.add(_parse_decimal(match["ones"]), value)
        if not value.is_finite() or _INSIDE_EXPRESSION.search(text, max(0, match.start() - 20), match.start()):
            continue
        if not _EXPRESSION_SUFFIX.match(text, match.end()):
            negative = (match["sign"] in _MINUS_SIGNS) != (match["inner"] in _MINUS_SIGNS)
            yield NumberSpan(_EXACT_CONTEXT.minus(value) if negative else value, match.start(), match.end())


def _power(base: Decimal, exponent: int) -> Decimal:
    """Return a power; NaN for more digits than in any answer."""
    if not base.is_finite() or abs(exponent * base.adjusted()) > MAX_NUMBER_LENGTH or abs(exponent) > MAX_NUMBER_LENGTH:
        return Decimal("NaN")
    return _EXACT_CONTEXT.power(base, exponent)


def extract_number(text: str) -> Decimal | None:
    """Return the number stated as the answer in a text.

    The answer is the only number in the last box or tag, or after its last "=". Otherwise, it is the first number after
    "the answer is", the result of a sum, or the only number in bold. Otherwise, it is the last number. The result is
    None without a number, or if the answer is ambiguous ("5 or 6", "between 3 and 5").

    >>> extract_number("5 + 3 = 8"), extract_number("5 or 6"), extract_number("The answer is 5 + 3 = 8.")
    (Decimal('8'), None, Decimal('8'))
    """
    text = normalize_numbers(strip_reasoning(text))
    marked = find_answer(text)
    if marked is not None:
        return _only_number(marked)
    statement = find_statement(text)
    if statement is not None:
        statement = _CORRECTION.sub("", statement)  # "not 9 but 8"
        return None if _REJECTED.match(statement) else _first_number(statement, _asserted_numbers(statement))
    numbers = _asserted_numbers(text)
    bold_text = find_bold(text) or ""
    bold_spans = list(find_numbers(bold_text))
    if len(bold_spans) == 1 and bold_spans[0].start == 0:  # the bold text begins with the number
        return _scaled_value(bold_text, bold_spans[0])
    if len(numbers) > 1 and _ALTERNATIVES.fullmatch(text, numbers[-2].end, numbers[-1].start):
        return None
    return _scaled_value(text, numbers[-1]) if numbers else None


def _asserted_numbers(text: str) -> list[NumberSpan]:
    """Return the numbers in a text, without explicitly rejected ones."""
    return [span for span in find_numbers(text) if not is_negated(text, span.start, span.end)]


def _scaled_value(text: str, span: NumberSpan) -> Decimal:
    """Return a number multiplied by its scale word, for example 5 million."""
    scale = _SCALE_WORD.match(text, span.end)
    if scale is None:
        return span.value
    return _EXACT_CONTEXT.multiply(
        span.value, Decimal(_SCALE_VALUES[scale[1].lower() if scale[1] else scale[2] or scale[3]])
    )


def parse_scaled_numbers(text: str) -> list[Decimal]:
    r"""Return all numbers in a text, multiplied by their scale words, also in LaTeX.

    >>> parse_scaled_numbers(r"3\text{ million} or 4k")
    [Decimal('3000000'), Decimal('4000')]
    """
    text = normalize_numbers(text)
    return [_scaled_value(text, span) for span in find_numbers(text)]


def _only_number(answer: str) -> Decimal | None:
    """Return the only number in a marked answer.

    For a chain of equations, this is the last number, unless a side is clearly wrong.
    """
    sides = _EQUALS_OR_APPROX.split(answer)
    numbers = list(find_numbers(sides[-1]))
    if len(numbers) != 1:
        return None
    values = {span.value for side in sides if _NUMBERS.fullmatch(side.strip(" $")) for span in find_numbers(side)}
    return _scaled_value(sides[-1], numbers[0]) if len(values) <= 1 or "=" not in answer else None


def _first_number(statement: str, numbers: list[NumberSpan]) -> Decimal | None:
    """Return the first number in a statement, or the result if a sum begins there."""
    if not numbers:
        return None
    chain = numbers[:1]
    for before, number in pairwise(numbers):
        if not _EQUATION_LINK.fullmatch(statement, before.end, number.start):
            break
        chain.append(number)
    if len(chain) > 1:
        return _number_after_equals(statement, chain)
    if len(numbers) > 1 and _ALTERNATIVES.fullmatch(statement, numbers[0].end, numbers[1].start):
        return None
    return _scaled_value(statement, numbers[0])


def _number_after_equals(statement: str, chain: list[NumberSpan]) -> Decimal | None:
    """Return the last number in a chain if an equals sign precedes it."""
    before, last = chain[-2:]
    return _scaled_value(statement, last) if _EQUAL_SIGN.search(statement, before.end, last.start) else None


def normalize_numbers(text: str) -> str:
    r"""Return a text with its numbers in plain ASCII, without LaTeX.

    >>> normalize_numbers(r"\frac{1}{2} of 1{,}000\% is ４２")
    '1/2 of 1,000% is 42'
    """
    text = _to_ascii_digits(text)
    for pattern, replacement in _LATEX_RULES:
        text = pattern.sub(replacement, text)
    return text


def _to_ascii_digits(text: str) -> str:
    """Convert decimal digits in every script to 0 to 9, keeping the length."""
    if text.isascii():
        return text
    return "".join(str(digit) if (digit := decimal(sign, None)) is not None else sign for sign in text)


def is_close(gold: Decimal, answer: Decimal, tolerance: float, relative: float) -> bool:
    """Return True if two numbers differ by at most ``tolerance``, or ``relative`` times the right one.

    >>> is_close(Decimal("0.3"), Decimal("0.4"), tolerance=0.1, relative=0.0)
    True
    """
    max_error = max(Decimal(repr(tolerance)), _EXACT_CONTEXT.multiply(Decimal(repr(relative)), abs(gold)))
    return abs(_EXACT_CONTEXT.subtract(gold, answer)) <= max_error


def normalize_words(text: str) -> list[str]:
    """Return the words of a text without case, punctuation and articles (SQuAD normalization).

    In scripts without spaces between words, each character is a word, as in the evaluation of MLQA and KorQuAD.

    >>> normalize_words("The  Eiffel-Tower!"), normalize_words("在长城。")
    (['eiffeltower'], ['在', '长', '城'])
    """
    return split_words(text, case=True, punctuation=True, articles=True, accents=False)


def split_words(text: str, *, case: bool, punctuation: bool, articles: bool, accents: bool) -> list[str]:
    """Return the words of a text with the selected normalizations.

    Args:
        case: convert to lower case.
        punctuation: remove punctuation, except decimal points and minus signs.
        articles: remove "a", "an" and "the".
        accents: remove accents.

    >>> split_words("The  Café!", case=True, punctuation=True, articles=True, accents=True)
    ['cafe']
    """
    text = normalize("NFC", text)
    if case:
        text = text.lower()
    if accents:
        text = "".join(character for character in normalize("NFKD", text) if not combining(character))
    if punctuation:
        protected = {match.start() for match in _NUMBER_SIGN.finditer(text)}
        text = "".join(
            character.replace("−", "-")
            for index, character in enumerate(text)
            if index in protected or not (character in string.punctuation or category(character).startswith("P"))
        )
    words = (_ARTICLES.sub(" ", text) if articles else text).split()
    return words if text.isascii() else [part for word in words for part in _WORD_PATTERN.findall(word)]


def token_f1(gold: str, answer: str) -> float:
    """Return the F1 score over shared words, from 0 to 1 (Rajpurkar et al. 2016, §6.1).

    Two texts without words score 1.

    >>> token_f1("the Eiffel Tower", "Eiffel tower in Paris")
    0.6666666666666666
    """
    gold_words, answer_words = normalize_words(gold), normalize_words(answer)
    if not (gold_words or answer_words):
        return 1.0
    shared = sum((Counter(gold_words) & Counter(answer_words)).values())
    return 2 * shared / (len(gold_words) + len(answer_words))


def edit_distance(source: str, target: str) -> int:
    """Return the edit distance between two texts, in characters (Levenshtein 1966).

    It is computed in bit columns (Hyyrö 2003, figure 4), with one step for each character in ``target``.

    >>> edit_distance("kitten", "sitting")
    3
    """
    if not source:
        return len(target)
    masks: dict[str, int] = {}
    for index, character in enumerate(source):
        masks[character] = masks.get(character, 0) | 1 << index
    mask, last = (1 << len(source)) - 1, 1 << len(source) - 1
    up, down, count = mask, 0, len(source)  # rows where the column rises by one, and where it falls by one
    for character in target:
        equal = masks.get(character, 0)
        diagonal = (((equal & up) + up) ^ up) | equal
        right, left = down | ~(diagonal | up), up & diagonal
        count += bool(right & last) - bool(left & last)
        right, left = (right << 1 | 1) & mask, (left << 1) & mask
        vertical = equal | down
        up, down = left | ~(vertical | right), right & vertical
    return count


def similarity(first: str, second: str) -> float:
    """Return 1 − edit distance / length of the longer text; two empty texts score 1.

    >>> similarity("abcd", "abce"), similarity("", "")
    (0.75, 1.0)
    """
    longest = max(len(first), len(second))
    return 1.0 - edit_distance(first, second) / longest if longest else 1.0


def contains(text: str, phrase: str, ignore_case: bool = True) -> bool:
    r"""Return True if a text contains a phrase as whole words, with any spacing.

    A number matches in any notation, but not as part of another number. In scripts without spaces between words, a
    phrase may begin and end anywhere.

    >>> contains("It is  New\nYork.", "new york"), contains("112", "12"), contains("-42 or 42,000", "42")
    (True, False, False)
    >>> contains("法国的首都是巴黎。", "巴黎"), contains("x=42.", "42")
    (True, True)
    """
    full_text, phrase = (
        normalize("NFC", " ".join(words.translate(_UNIFIED_SIGNS).split())) for words in (text, phrase)
    )
    number = _parse_single_number(phrase)
    if number is not None:
        return _contains_number(normalize_numbers(full_text), number)
    if ignore_case:
        full_text, phrase = full_text.casefold(), phrase.casefold()
    before, after = _WORD_START if _is_letter(phrase[:1]) else "", _WORD_END if _is_letter(phrase[-1:]) else ""
    return bool(phrase) and regex.search(f"{before}{regex.escape(phrase)}{after}", full_text) is not None


def _is_letter(sign: str) -> bool:
    return regex.fullmatch(r"[^\W_]", sign) is not None


def _parse_single_number(phrase: str) -> Decimal | None:
    """Parse a text with a single number. The result is None for other texts. A text with leading zeros is a name."""
    plain = normalize_numbers(phrase)
    numbers = list(find_numbers(plain))
    is_name = _LEADING_ZERO.match(plain) or not re.match(r"[-−+–]?\.?[0-9]", plain)
    return numbers[0].value if len(numbers) == 1 and numbers[0][1:] == (0, len(plain)) and not is_name else None


def _contains_number(text: str, number: Decimal) -> bool:
    for value, start, end in find_numbers(text):
        is_name = _LEADING_ZERO.match(text, start) or _NAME_SUFFIX.match(text, end)
        if value == number and not (is_name or _SCALE_WORD.match(text, end) or _MINUS_WORD.search(text, endpos=start)):
            return True
    return False


def _parse_decimal(number: str, comma_form: str | None = None) -> Decimal:
    """Return the value of a number; NaN if too long or too large.

    Args:
        comma_form: the same text if its decimal separator is a comma.
    """
    if comma_form:
        digits = re.sub(f"[.]|{_DIGIT_SPACE}", "", comma_form).replace(",", ".") + number[len(comma_form) :]
    else:
        digits = re.sub(f",|{_DIGIT_SPACE}", "", number)
    if len(digits) > MAX_NUMBER_LENGTH:
        return Decimal("NaN")
    return _EXACT_CONTEXT.create_decimal(digits.replace("−", "-"))
