"""How close a text is to a right answer: numbers in it, words that they share. Pure functions."""

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
_WHOLE = (  # as many write it: 1,234 and 12,34,567; 1 234; 1.234.567; 1234
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
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff"  # letters that numbers may follow
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
_SUFFIXED = _LETTERS + r"\p{Hangul}"  # Korean has spaces before its words, and none before its particles
# between letters a word begins or ends only where one of them is of a script without spaces
_BEGINS = rf"(?:(?<![^\W_]|[^\W_]_)|(?<=[{_LETTERS}])|(?=[{_LETTERS}]))"
_ENDS = (
    r"(?:(?![^\W_]|_[^\W_]|[+#]+(?![^\W_]))"
    rf"|(?:(?<=[{_SUFFIXED}])|(?=[{_SUFFIXED}]))(?![\p{{M}}+#]|_[^\W_]))"
)
_UNSPACED = regex.compile(
    rf"[{_LETTERS}]\p{{M}}*|\p{{Hangul}}|[^{_LETTERS}\p{{Hangul}}\s]+"
)  # a token of scripts without spaces
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
_CHAIN = re.compile(  # all possessive: of long texts no part is tried again
    r"[\s()$\\.]*+(?:[^\W\d_]{2,}+\s*+){0,2}+(?:[()$\s]*+[-=+−–*/×÷·≈])++[\s($€£¥]*+"
)
_BESIDE = re.compile(  # two numbers of which one is the answer, or none
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
_LETTER_BEHIND = regex.compile(rf"_[0-9]|(?![{_SUFFIXED}])[^\W_]")  # of a name
_UP = str.maketrans("−⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹", "--+0123456789")
_KEPT_POINT = re.compile(r"(?<=[0-9])\.(?=[0-9])|(?<![\w.)])[-−](?=\.?[0-9])")  # of numbers
_ALIKE = str.maketrans("‐‑’‘“”", "--''\"\"") | {0xFF01 + place: 0x21 + place for place in range(94)}
LONGEST = 400  # characters of a number
_EXACT = Context(prec=2 * LONGEST, traps=[])


class Placed(NamedTuple):
    """A number, and where in a text it begins and ends, its sign and currency included."""

    value: Decimal
    start: int
    end: int


def numbers_in(text: str) -> list[Decimal]:
    """The numbers that a text names, in order: with thousands, exponents, currency signs and as fractions.

    >>> numbers_in("from $1,234.50 to -3, or 1/4 of it")
    [Decimal('1234.50'), Decimal('-3'), Decimal('0.25')]
    >>> numbers_in("1.234,5 and 1 000 and 1.5 × 10^3 and 2 1/2")
    [Decimal('1234.5'), Decimal('1000'), Decimal('1.5E+3'), Decimal('2.5')]
    """
    return [placed.value for placed in placed_numbers(_ascii_digits(text))]


def placed_numbers(text: str) -> Iterator[Placed]:
    """The numbers that a text names, in order, each with where it begins and ends; a whole power is what it
    comes to. Roots and what is multiplied with π are other numbers."""
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
    """Return a power; NaN where it has more digits than any answer."""
    if not base.is_finite() or abs(exponent * base.adjusted()) > LONGEST or abs(exponent) > LONGEST:
        return Decimal("NaN")
    return _EXACT.power(base, exponent)


def number_stated(text: str) -> Decimal | None:
    """Return the number that a text gives as its answer: the only one in the last box or tag, or after its last "=";
    else the first one after "the answer is", what a sum comes to, or the only one in bold; else the last one. None
    where there is none, or several of which any may be meant ("5 or 6", "between 3 and 5").

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
    if len(bold) == 1 and bold[0].start == 0:  # it begins with it
        return _value(emphasized, bold[0])
    if len(numbers) > 1 and _BESIDE.fullmatch(text, numbers[-2].end, numbers[-1].start):
        return None
    return _value(text, numbers[-1]) if numbers else None


def _held_to(text: str) -> list[Placed]:
    """Return the numbers of a text, without those that it says are not the answer."""
    return [placed for placed in placed_numbers(text) if not denied(text, placed.start, placed.end)]


def _value(text: str, placed: Placed) -> Decimal:
    """Return a number of a text, as large as the word after it makes it: 5 million."""
    scale = _SCALES.match(text, placed.end)
    if scale is None:
        return placed.value
    return _EXACT.multiply(placed.value, Decimal(_SCALED[scale[1].lower() if scale[1] else scale[2] or scale[3]]))


def scaled_numbers(text: str) -> list[Decimal]:
    r"""Return the numbers that a text names, as large as the words after them make them, also in LaTeX.

    >>> scaled_numbers(r"3\text{ million} or 4k")
    [Decimal('3000000'), Decimal('4000')]
    """
    text = plain_numbers(text)
    return [_value(text, placed) for placed in placed_numbers(text)]


def _only_number(stated: str) -> Decimal | None:
    """Return the one number in what is marked as an answer; the last one of a chain of equations, where none of them is
    plainly wrong."""
    sides = _EQUALS.split(stated)
    numbers = list(placed_numbers(sides[-1]))
    if len(numbers) != 1:
        return None
    plain = {placed.value for side in sides if _NUMBERS.fullmatch(side.strip(" $")) for placed in placed_numbers(side)}
    return _value(sides[-1], numbers[0]) if len(plain) <= 1 or "=" not in stated else None


def _first_number(statement: str, numbers: list[Placed]) -> Decimal | None:
    """Return the first number of a statement, or what the sum that begins with it comes to."""
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
    """Return the last number of a chain, where an equals sign is before it."""
    before, last = chain[-2:]
    return _value(statement, last) if _EQUAL_SIGN.search(statement, before.end, last.start) else None


def plain_numbers(text: str) -> str:
    r"""Return a text whose numbers are written without LaTeX, in ASCII digits.

    >>> plain_numbers(r"\frac{1}{2} of 1{,}000\% is ４２")
    '1/2 of 1,000% is 42'
    """
    text = _ascii_digits(text)
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    return text


def _ascii_digits(text: str) -> str:
    """Return a text with the decimal digits of all scripts as 0 to 9: as many characters."""
    if text.isascii():
        return text
    return "".join(str(digit) if (digit := decimal(sign, None)) is not None else sign for sign in text)


def close(right: Decimal, given: Decimal, tolerance: float, relative: float) -> bool:
    """Whether two numbers are as near as ``tolerance``, or ``relative`` times the right one.

    >>> close(Decimal("0.3"), Decimal("0.4"), tolerance=0.1, relative=0.0)
    True
    """
    most = max(Decimal(repr(tolerance)), _EXACT.multiply(Decimal(repr(relative)), abs(right)))
    return abs(_EXACT.subtract(right, given)) <= most


def words_of(text: str) -> list[str]:
    """The words that count: without case, punctuation and articles (SQuAD's own normalisation). In scripts that put no
    spaces between words, each character is one, as in the evaluation of MLQA and KorQuAD.

    >>> words_of("The  Eiffel-Tower!"), words_of("在长城。")
    (['eiffeltower'], ['在', '长', '城'])
    """
    return plain_words(text, case=True, punctuation=True, articles=True, accents=False)


def plain_words(text: str, *, case: bool, punctuation: bool, articles: bool, accents: bool) -> list[str]:
    """The words of a text, without what does not count.

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
    """The F1 of shared words, from 0 to 1 (Rajpurkar et al. 2016, §6.1). Without any words only nothing is right.

    >>> token_f1("the Eiffel Tower", "Eiffel tower in Paris")
    0.6666666666666666
    """
    expected, said = words_of(right), words_of(given)
    if not (expected or said):
        return 1.0
    shared = sum((Counter(expected) & Counter(said)).values())
    return 2 * shared / (len(expected) + len(said))


def edits(one: str, other: str) -> int:
    """How many characters have to be put in, taken out or changed to make one text of the other (Levenshtein 1966).

    Counted in columns of bits (Hyyrö 2003, figure 4): as many steps as ``other`` has characters.

    >>> edits("kitten", "sitting")
    3
    """
    if not one:
        return len(other)
    places: dict[str, int] = {}
    for place, character in enumerate(one):
        places[character] = places.get(character, 0) | 1 << place
    every, last = (1 << len(one)) - 1, 1 << len(one) - 1
    up, down, count = every, 0, len(one)  # where the column rises by one from a row to the next, and where it falls
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
    """How alike two texts are: 1 less the edits by the longer one's characters; two empty ones are the same.

    >>> similarity("abcd", "abce"), similarity("", "")
    (0.75, 1.0)
    """
    longest = max(len(one), len(other))
    return 1.0 - edits(one, other) / longest if longest else 1.0


def contains(text: str, part: str, ignore_case: bool = True) -> bool:
    """Whether a text holds a part as whole words, however spaced; a number as a number of its own, however written.

    Where a script puts no spaces between words, they may begin and end anywhere.

    >>> contains("It is  New\\nYork.", "new york"), contains("112", "12"), contains("-42 or 42,000", "42")
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
    """Return the number that a text is, and nothing else: one with zeros in front is a name."""
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
    """Return the value of a number; NaN where it is too long or too large.

    Args:
        in_commas: the same where its decimals come after a comma.
    """
    if in_commas:
        digits = re.sub(f"[.]|{_GAP}", "", in_commas).replace(",", ".") + number[len(in_commas) :]
    else:
        digits = re.sub(f",|{_GAP}", "", number)
    return _EXACT.create_decimal(digits.replace("−", "-")) if len(digits) <= LONGEST else Decimal("NaN")
