"""How close a text is to a right answer: numbers in it, words that they share. Pure functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from decimal import Context, Decimal, InvalidOperation
from string import punctuation
from unicodedata import combining, normalize

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]++)"
_NUMBER = rf"(?:{_DIGITS}(?:\.[0-9]++)?|\.[0-9]++)(?:[eE][-+]?[0-9]++)?"
_NUMBERS = re.compile(rf"(?<![\w.])([-+−]?)[$€£]?([-+−]?)({_NUMBER})(?:\s*/\s*({_NUMBER}))?(?!\.[0-9])")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", punctuation)
LONGEST = 400  # characters of a number
_EXACT = Context(prec=2 * LONGEST, traps=[])


def numbers_in(text: str) -> list[Decimal]:
    """The numbers that a text names, in order: with commas at thousands, exponents, currency signs and as fractions.

    >>> numbers_in("from $1,234.50 to -3, or 1/4 of it")
    [Decimal('1234.50'), Decimal('-3'), Decimal('0.25')]
    """
    return [value for value, _, _ in placed_numbers(text)]


def placed_numbers(text: str) -> Iterator[tuple[Decimal, int, int]]:
    """The numbers that a text names, in order, each with where it begins and ends, its sign and currency included."""
    for match in _NUMBERS.finditer(text):
        before, after, number, divisor = match.groups(default="")
        value = _decimal(number)
        if divisor:
            value = _EXACT.divide(value, _decimal(divisor))
        if value.is_finite():
            negative = (before in ("-", "−")) != (after in ("-", "−"))
            yield _EXACT.minus(value) if negative else value, match.start(), match.end()


def close(right: Decimal, given: Decimal, tolerance: float, relative: float) -> bool:
    """Whether two numbers are as near as ``tolerance``, or ``relative`` times the right one.

    >>> close(Decimal("0.3"), Decimal("0.4"), tolerance=0.1, relative=0.0)
    True
    """
    most = max(Decimal(repr(tolerance)), _EXACT.multiply(Decimal(repr(relative)), abs(right)))
    return abs(_EXACT.subtract(right, given)) <= most


def words_of(text: str) -> list[str]:
    """The words that count: without case, punctuation and articles (SQuAD's own normalisation).

    >>> words_of("The  Eiffel-Tower!")
    ['eiffeltower']
    """
    return plain_words(text, case=True, punctuation=True, articles=True, accents=False)


def plain_words(text: str, *, case: bool, punctuation: bool, articles: bool, accents: bool) -> list[str]:
    """The words of a text, without what does not count.

    >>> plain_words("The  Café!", case=True, punctuation=True, articles=True, accents=True)
    ['cafe']
    """
    if case:
        text = text.lower()
    if accents:
        text = "".join(sign for sign in normalize("NFKD", text) if not combining(sign))
    if punctuation:
        text = text.translate(_PUNCTUATION)
    return (_ARTICLES.sub(" ", text) if articles else text).split()


def token_f1(right: str, given: str) -> float:
    """The F1 of shared words, from 0 to 1 (Rajpurkar et al. 2016, §6.1). Without any words only nothing is right.

    >>> token_f1("the Eiffel Tower", "Eiffel tower in Paris")
    0.6666666666666666
    """
    expected, said = words_of(right), words_of(given)
    if not expected or not said:
        return float(expected == said)
    shared = sum((Counter(expected) & Counter(said)).values())
    return 2 * shared / (len(expected) + len(said))


def edits(one: str, other: str) -> int:
    """How many characters have to be put in, taken out or changed to make one text of the other (Levenshtein 1966).

    Counted in columns of bits (Hyyrö 2003, figure 4): as many steps as ``other`` has characters.

    >>> edits("kitten", "sitting")
    3
    """
    if not one or not other:
        return len(one) + len(other)
    places: dict[str, int] = {}
    for place, character in enumerate(one):
        places[character] = places.get(character, 0) | 1 << place
    every, last = (1 << len(one)) - 1, 1 << len(one) - 1
    up, down, count = every, 0, len(one)  # where the column rises by one from a row to the next, and where it falls
    for character in other:
        equal = places.get(character, 0)
        steady = (((equal & up) + up) ^ up) | equal | down
        right, left = down | (~(steady | up) & every), up & steady
        count += bool(right & last) - bool(left & last)
        right, left = (right << 1 | 1) & every, (left << 1) & every
        vertical = equal | down
        up, down = left | (~(vertical | right) & every), right & vertical
    return count


def similarity(one: str, other: str) -> float:
    """How alike two texts are: 1 less the edits by the longer one's characters; two empty ones are the same.

    >>> similarity("abcd", "abce"), similarity("", "")
    (0.75, 1.0)
    """
    longest = max(len(one), len(other))
    return 1.0 - edits(one, other) / longest if longest else 1.0


def contains(text: str, part: str, ignore_case: bool = True) -> bool:
    """Whether a text holds a part as whole words, however spaced.

    >>> contains("It is  New\\nYork.", "new york"), contains("112", "12")
    (True, False)
    """
    whole, part = (" ".join(words.split()) for words in (text, part))
    if ignore_case:
        whole, part = whole.casefold(), part.casefold()
    edges = (r"(?<!\w)" if part[:1].isalnum() else "", r"(?!\w)" if part[-1:].isalnum() else "")
    return bool(part) and re.search(f"{edges[0]}{re.escape(part)}{edges[1]}", whole) is not None


def _decimal(number: str) -> Decimal:
    digits = number.replace(",", "")
    try:
        return _EXACT.create_decimal(digits) if len(digits) <= LONGEST else Decimal("NaN")
    except InvalidOperation:  # an exponent beyond all numbers
        return Decimal("NaN")
