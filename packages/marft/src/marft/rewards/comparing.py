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

from marft.agents.answers import bold_in, denied, find_answer, statement_in
from marft.common.thoughts import outside_thoughts

_GAP = "[ \u00a0\u2009\u202f'’]"
_WHOLE = (  # common notations: 1,234 and 12,34,567; 1 234; 1.234.567; 1234
    rf"(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+(?![0-9])|[0-9]{{1,2}}(?:,[0-9]{{2}})+,[0-9]{{3}}(?![0-9])"
    rf"|[0-9]{{1,3}}(?:{_GAP}[0-9]{{3}})+(?![0-9]))"
)
_NUMBER = (
    rf"(?:(?P<dots>[0-9]{{1,3}}(?:(?:\.[0-9]{{3}})+|(?:{_GAP}[0-9]{{3}})+),[0-9]++|[0-9]{{1,3}}(?:\.[0-9]{{3}}){{2,}}(?![0-9]))"
    rf"|(?P<comma>[0-9]++,(?:[0-9]{{1,2}}|[0-9]{{4,}})(?![0-9]|,[0-9]))"
    rf"|{_WHOLE}(?:\.[0-9]++)?|[0-9]++(?:\.[0-9]++)?|\.[0-9]++)(?:[eE][-+−]?[0-9]++)?"
)
_TIMES = (
    r"(?:\s*(?:[×x*·]|\\times|\\cdot)\s*10(?:\s*(?:\^|\*\*)\s*\{?\s*|(?=[⁻⁺⁰¹²³⁴-⁹]))"
    r"(?P<power>[-−+⁻⁺]?[0-9⁰¹²³⁴-⁹]{1,4})\s*\}?)?"
)
_RAISED = (
    r"(?:\s*(?:\^|\*\*)\s*(?:\{\s*(?P<braced>[-−]?[0-9]{1,3})\s*\}|"
    r"(?P<exponent>[-−]?[0-9]{1,3})(?![0-9.]))|(?P<raised>⁻?[⁰¹²³⁴-⁹]{1,3}))"
)
_PLAIN = _NUMBER.replace("?P<dots>", "?:").replace("?P<comma>", "?:")
_EAST = (
    # letters that a number may follow directly
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff"
)
_NUMBERS = re.compile(
    rf"(?:(?<![\w.])|(?<=[{_EAST}]))(?P<sign>[-+−–－]?)[$€£¥]?(?P<inner>[-+−]?)"
    r"(?:(?P<ones>[0-9]++)[ -](?=[0-9]++/[0-9]))?"
    rf"(?P<number>{_NUMBER})(?:{_RAISED}|{_TIMES})(?:\s*[/⁄]\s*(?P<divisor>{_PLAIN}))?(?!\.[0-9])"
)
_MINUSES = ("-", "−", "–", "－")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_LETTERS = "".join(
    f"\\p{{{name}}}" for name in ("Han", "Hiragana", "Katakana", "Thai", "Khmer", "Lao", "Myanmar", "Tibetan")
)
_SUFFIXED = _LETTERS + r"\p{Hangul}"  # Korean has spaces before words, but none before particles
# between letters, a word boundary exists only next to a script without spaces
_BEGINS = rf"(?:(?<![^\W_]|[^\W_]_)|(?<=[{_LETTERS}])|(?=[{_LETTERS}]))"
_ENDS = (
    r"(?:(?![^\W_]|_[^\W_]|[+#]+(?![^\W_]))"
    rf"|(?:(?<=[{_SUFFIXED}])|(?=[{_SUFFIXED}]))(?![\p{{M}}+#]|_[^\W_]))"
)
_UNSPACED = regex.compile(
    rf"[{_LETTERS}]\p{{M}}*|\p{{Hangul}}|[^{_LETTERS}\p{{Hangul}}\s]+"
)  # a token in scripts without spaces
_LATEX = (
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
_OF_MORE = re.compile(r"(?:√|\\sqrt\s*\[|\\sqrt\s*(?:\[[^\]]*\])?\s*\{?|±|\\pm|\^\{?|_\{?)\s*$")
_MORE = re.compile(r"\}?\s*(?:π|\\pi\b|\^|\*\*(?=[0-9({])|!(?!\w)(?=\S)|[²³⁴-⁹]|√|\\sqrt|(?:±|\\pm|\+/-)\s*[0-9.])")
_CHAIN = re.compile(  # all quantifiers are possessive, to avoid backtracking in long texts
    r"[\s()$\\.]*+(?:[^\W\d_]{2,}+\s*+){0,2}+(?:[()$\s]*+[-=+−–*/×÷·≈])++[\s($€£¥]*+"
)
_BESIDE = re.compile(  # two alternative numbers, of which neither is the answer
    r"\s*+(?:,|;|(?:,\s*+)?\(?(?:or|and|to|oder|bis|und|ou|et|o|y|或者?|到|至)(?:\s+(?:maybe|perhaps|possibly))?|[-–—~/&])\s*[$€£¥]?",
    re.IGNORECASE,
)
_EQUALS = re.compile(r"(?<![<>!])=|≈|\\approx")
_EQUAL_SIGN = re.compile("[=≈]")
_DENIED = re.compile(r"\s*(?:not|never|neither|nor|none)\b", re.IGNORECASE)
_NOT_THAT_BUT = re.compile(r"^\s*not\b[^.\n]{1,40}?\bbut\s+", re.IGNORECASE)
_SCALES = re.compile(
    r"(?:\s|-)*(?i:(hundred|thousand|million|billion|trillion|dozen)s?)\b|\s*(千(?![克米瓦卡])|百(?!分)|[万萬億亿])|(k|M|bn)(?!\w)"
)
_SCALED = {
    "hundred": 100, "百": 100, "thousand": 10**3, "千": 10**3, "k": 10**3, "million": 10**6, "M": 10**6,
    "billion": 10**9, "bn": 10**9, "trillion": 10**12, "dozen": 12, "万": 10**4, "萬": 10**4, "億": 10**8, "亿": 10**8,
}  # fmt: skip
_MINUS = re.compile(r"\b(?:minus|negative)\s+$", re.IGNORECASE)
_ZERO_IN_FRONT = re.compile(r"[-−+]?0[0-9]")
_LETTER_BEHIND = regex.compile(rf"_[0-9]|(?![{_SUFFIXED}])[^\W_]")  # part of a name
_UP = str.maketrans("−⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹", "--+0123456789")
_KEPT_POINT = re.compile(r"(?<=[0-9])\.(?=[0-9])|(?<![\w.)])[-−](?=\.?[0-9])")  # in numbers
_ALIKE = str.maketrans("‐‑’‘“”", "--''\"\"") | {0xFF01 + place: 0x21 + place for place in range(94)}
LONGEST = 400  # maximum length of a number, in characters
_EXACT = Context(prec=2 * LONGEST, traps=[])


class Placed(NamedTuple):
    """Number found in a text, with its start and end, including sign and currency."""

    value: Decimal
    start: int
    end: int


def numbers_in(text: str) -> list[Decimal]:
    """Return all numbers in a text, in order.

    Thousands separators, exponents, currency signs and fractions are parsed.

    >>> numbers_in("from $1,234.50 to -3, or 1/4 of it")
    [Decimal('1234.50'), Decimal('-3'), Decimal('0.25')]
    >>> numbers_in("1.234,5 and 1 000 and 1.5 × 10^3 and 2 1/2")
    [Decimal('1234.5'), Decimal('1000'), Decimal('1.5E+3'), Decimal('2.5')]
    """
    return [placed.value for placed in placed_numbers(_ascii_digits(text))]


def placed_numbers(text: str) -> Iterator[Placed]:
    """Yield the numbers in a text with their positions, in order.

    An integer power is evaluated. Roots and multiples of π are skipped.
    """
    for match in _NUMBERS.finditer(text):
        value = _decimal(match["number"], match["dots"] or match["comma"])
        raised = match["braced"] or match["exponent"] or match["raised"]
        if raised:
            value = _power(value, int(raised.translate(_UP)))
        if match["power"]:
            value = _EXACT.scaleb(value, int(match["power"].translate(_UP)))
        if match["divisor"]:
            value = _EXACT.divide(value, _decimal(match["divisor"]))
        if match["ones"]:
            value = _EXACT.add(_decimal(match["ones"]), value)
        if not value.is_finite() or _OF_MORE.search(text, max(0, match.start() - 20), match.start()):
            continue
        if not _MORE.match(text, match.end()):
            negative = (match["sign"] in _MINUSES) != (match["inner"] in _MINUSES)
            yield Placed(_EXACT.minus(value) if negative else value, match.start(), match.end())


def _power(base: Decimal, exponent: int) -> Decimal:
    """Return a power; NaN for more digits than in any answer."""
    if not base.is_finite() or abs(exponent * base.adjusted()) > LONGEST or abs(exponent) > LONGEST:
        return Decimal("NaN")
    return _EXACT.power(base, exponent)


def number_stated(text: str) -> Decimal | None:
    """Return the number stated as the answer in a text.

    The answer is the only number in the last box or tag, or after its last "=". Otherwise, it is the first number after
    "the answer is", the result of a sum, or the only number in bold. Otherwise, it is the last number. The result is
    None without a number, or if the answer is ambiguous ("5 or 6", "between 3 and 5").

    >>> number_stated("5 + 3 = 8"), number_stated("5 or 6"), number_stated("The answer is 5 + 3 = 8.")
    (Decimal('8'), None, Decimal('8'))
    """
    text = plain_numbers(outside_thoughts(text))
    found = find_answer(text)
    if found is not None:
        return _only_number(found)
    statement = statement_in(text)
    if statement is not None:
        statement = _NOT_THAT_BUT.sub("", statement)  # "not 9 but 8"
        return None if _DENIED.match(statement) else _first_number(statement, _held_to(statement))
    numbers = _held_to(text)
    emphasized = bold_in(text) or ""
    bold = list(placed_numbers(emphasized))
    if len(bold) == 1 and bold[0].start == 0:  # the bold text begins with the number
        return _value(emphasized, bold[0])
    if len(numbers) > 1 and _BESIDE.fullmatch(text, numbers[-2].end, numbers[-1].start):
        return None
    return _value(text, numbers[-1]) if numbers else None


def _held_to(text: str) -> list[Placed]:
    """Return the numbers in a text, without explicitly rejected ones."""
    return [placed for placed in placed_numbers(text) if not denied(text, placed.start, placed.end)]


def _value(text: str, placed: Placed) -> Decimal:
    """Return a number multiplied by its scale word, for example 5 million."""
    scale = _SCALES.match(text, placed.end)
    if scale is None:
        return placed.value
    return _EXACT.multiply(placed.value, Decimal(_SCALED[scale[1].lower() if scale[1] else scale[2] or scale[3]]))


def scaled_numbers(text: str) -> list[Decimal]:
    r"""Return all numbers in a text, multiplied by their scale words, also in LaTeX.

    >>> scaled_numbers(r"3\text{ million} or 4k")
    [Decimal('3000000'), Decimal('4000')]
    """
    text = plain_numbers(text)
    return [_value(text, placed) for placed in placed_numbers(text)]


def _only_number(stated: str) -> Decimal | None:
    """Return the only number in a marked answer.

    For a chain of equations, this is the last number, unless a side is clearly wrong.
    """
    sides = _EQUALS.split(stated)
    numbers = list(placed_numbers(sides[-1]))
    if len(numbers) != 1:
        return None
    plain = {placed.value for side in sides if _NUMBERS.fullmatch(side.strip(" $")) for placed in placed_numbers(side)}
    return _value(sides[-1], numbers[0]) if len(plain) <= 1 or "=" not in stated else None


def _first_number(statement: str, numbers: list[Placed]) -> Decimal | None:
    """Return the first number in a statement, or the result if a sum begins there."""
    if not numbers:
        return None
    chain = numbers[:1]
    for before, number in pairwise(numbers):
        if not _CHAIN.fullmatch(statement, before.end, number.start):
            break
        chain.append(number)
    if len(chain) > 1:
        return _after_equals(statement, chain)
    if len(numbers) > 1 and _BESIDE.fullmatch(statement, numbers[0].end, numbers[1].start):
        return None
    return _value(statement, numbers[0])


def _after_equals(statement: str, chain: list[Placed]) -> Decimal | None:
    """Return the last number in a chain if an equals sign precedes it."""
    before, last = chain[-2:]
    return _value(statement, last) if _EQUAL_SIGN.search(statement, before.end, last.start) else None


def plain_numbers(text: str) -> str:
    r"""Return a text with its numbers in plain ASCII, without LaTeX.

    >>> plain_numbers(r"\frac{1}{2} of 1{,}000\% is ４２")
    '1/2 of 1,000% is 42'
    """
    text = _ascii_digits(text)
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    return text


def _ascii_digits(text: str) -> str:
    """Convert decimal digits in every script to 0 to 9, keeping the length."""
    if text.isascii():
        return text
    return "".join(str(digit) if (digit := decimal(sign, None)) is not None else sign for sign in text)


def close(right: Decimal, given: Decimal, tolerance: float, relative: float) -> bool:
    """Return True if two numbers differ by at most ``tolerance``, or ``relative`` times the right one.

    >>> close(Decimal("0.3"), Decimal("0.4"), tolerance=0.1, relative=0.0)
    True
    """
    most = max(Decimal(repr(tolerance)), _EXACT.multiply(Decimal(repr(relative)), abs(right)))
    return abs(_EXACT.subtract(right, given)) <= most


def words_of(text: str) -> list[str]:
    """Return the words of a text without case, punctuation and articles (SQuAD normalization).

    In scripts without spaces between words, each character is a word, as in the evaluation of MLQA and KorQuAD.

    >>> words_of("The  Eiffel-Tower!"), words_of("在长城。")
    (['eiffeltower'], ['在', '长', '城'])
    """
    return plain_words(text, case=True, punctuation=True, articles=True, accents=False)


def plain_words(text: str, *, case: bool, punctuation: bool, articles: bool, accents: bool) -> list[str]:
    """Return the words of a text with the selected normalizations.

    Args:
        case: convert to lower case.
        punctuation: remove punctuation, except decimal points and minus signs.
        articles: remove "a", "an" and "the".
        accents: remove accents.

    >>> plain_words("The  Café!", case=True, punctuation=True, articles=True, accents=True)
    ['cafe']
    """
    text = normalize("NFC", text)
    if case:
        text = text.lower()
    if accents:
        text = "".join(sign for sign in normalize("NFKD", text) if not combining(sign))
    if punctuation:
        kept = {found.start() for found in _KEPT_POINT.finditer(text)}
        text = "".join(
            sign.replace("−", "-")
            for place, sign in enumerate(text)
            if place in kept or not (sign in string.punctuation or category(sign).startswith("P"))
        )
    words = (_ARTICLES.sub(" ", text) if articles else text).split()
    return words if text.isascii() else [part for word in words for part in _UNSPACED.findall(word)]


def token_f1(right: str, given: str) -> float:
    """Return the F1 score over shared words, from 0 to 1 (Rajpurkar et al. 2016, §6.1).

    Two texts without words score 1.

    >>> token_f1("the Eiffel Tower", "Eiffel tower in Paris")
    0.6666666666666666
    """
    expected, said = words_of(right), words_of(given)
    if not (expected or said):
        return 1.0
    shared = sum((Counter(expected) & Counter(said)).values())
    return 2 * shared / (len(expected) + len(said))


def edits(one: str, other: str) -> int:
    """Return the edit distance between two texts, in characters (Levenshtein 1966).

    It is computed in bit columns (Hyyrö 2003, figure 4), with one step for each character in ``other``.

    >>> edits("kitten", "sitting")
    3
    """
    if not one:
        return len(other)
    places: dict[str, int] = {}
    for place, character in enumerate(one):
        places[character] = places.get(character, 0) | 1 << place
    every, last = (1 << len(one)) - 1, 1 << len(one) - 1
    up, down, count = every, 0, len(one)  # rows where the column rises by one, and where it falls by one
    for character in other:
        equal = places.get(character, 0)
        steady = (((equal & up) + up) ^ up) | equal
        right, left = down | ~(steady | up), up & steady
        count += bool(right & last) - bool(left & last)
        right, left = (right << 1 | 1) & every, (left << 1) & every
        vertical = equal | down
        up, down = left | ~(vertical | right), right & vertical
    return count


def similarity(one: str, other: str) -> float:
    """Return 1 − edit distance / length of the longer text; two empty texts score 1.

    >>> similarity("abcd", "abce"), similarity("", "")
    (0.75, 1.0)
    """
    longest = max(len(one), len(other))
    return 1.0 - edits(one, other) / longest if longest else 1.0


def contains(text: str, part: str, ignore_case: bool = True) -> bool:
    r"""Return True if a text contains a phrase as whole words, with any spacing.

    A number matches in any notation, but not as part of another number. In scripts without spaces between words, a
    phrase may begin and end anywhere.

    >>> contains("It is  New\nYork.", "new york"), contains("112", "12"), contains("-42 or 42,000", "42")
    (True, False, False)
    >>> contains("法国的首都是巴黎。", "巴黎"), contains("x=42.", "42")
    (True, True)
    """
    whole, part = (normalize("NFC", " ".join(words.translate(_ALIKE).split())) for words in (text, part))
    number = _whole_number(part)
    if number is not None:
        return _holds_number(plain_numbers(whole), number)
    if ignore_case:
        whole, part = whole.casefold(), part.casefold()
    before, after = _BEGINS if _is_letter(part[:1]) else "", _ENDS if _is_letter(part[-1:]) else ""
    return bool(part) and regex.search(f"{before}{regex.escape(part)}{after}", whole) is not None


def _is_letter(sign: str) -> bool:
    return regex.fullmatch(r"[^\W_]", sign) is not None


def _whole_number(part: str) -> Decimal | None:
    """Parse a text with a single number. The result is None for other texts. A text with leading zeros is a name."""
    plain = plain_numbers(part)
    numbers = list(placed_numbers(plain))
    named = _ZERO_IN_FRONT.match(plain) or not re.match(r"[-−+–]?\.?[0-9]", plain)
    return numbers[0].value if len(numbers) == 1 and numbers[0][1:] == (0, len(plain)) and not named else None


def _holds_number(text: str, number: Decimal) -> bool:
    for value, start, end in placed_numbers(text):
        named = _ZERO_IN_FRONT.match(text, start) or _LETTER_BEHIND.match(text, end)
        if value == number and not (named or _SCALES.match(text, end) or _MINUS.search(text, endpos=start)):
            return True
    return False


def _decimal(number: str, in_commas: str | None = None) -> Decimal:
    """Return the value of a number; NaN if too long or too large.

    Args:
        in_commas: the same text if its decimal separator is a comma.
    """
    if in_commas:
        digits = re.sub(f"[.]|{_GAP}", "", in_commas).replace(",", ".") + number[len(in_commas) :]
    else:
        digits = re.sub(f",|{_GAP}", "", number)
    return _EXACT.create_decimal(digits.replace("−", "-")) if len(digits) <= LONGEST else Decimal("NaN")
