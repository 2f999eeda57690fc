"""Quantities in texts: numbers with units of measure, in LaTeX or plain notation.

The small table of units replaces a library. Pint evaluates its input (``9**9**9 m`` never returns), reads ``6 ft 3 in``
as an area and ``5 a`` as years, and has no currencies. Factors are from the SI brochure (9th edition, tables 2 to 8)
and NIST Special Publication 811, appendix B.8.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from fractions import Fraction
from typing import NamedTuple

from marft.rewards.text_match import find_numbers

Dimensions = tuple[tuple[str, int], ...]  # power by base unit; sorted, without zeros
_PREFIXES = {
    "Y": 24, "Z": 21, "E": 18, "P": 15, "T": 12, "G": 9, "M": 6, "k": 3, "h": 2, "da": 1, "d": -1, "c": -2, "m": -3,
    "µ": -6, "μ": -6, "u": -6, "n": -9, "p": -12, "f": -15, "a": -18,
}  # fmt: skip
_PREFIX_NAMES = {
    "tera": 12, "giga": 9, "mega": 6, "kilo": 3, "hecto": 2, "deca": 1, "deci": -1, "centi": -2, "milli": -3,
    "micro": -6, "nano": -9, "pico": -12,
}  # fmt: skip
# symbol: names, factor, base units with powers; only units in the first table take prefixes
_PREFIXABLE_UNITS: dict[str, tuple[str, str, str]] = {
    "m": ("metre meter", "1", "m"), "g": ("gram gramme", "1/1000", "kg"), "s": ("second sec", "1", "s"),
    "A": ("ampere amp", "1", "A"), "K": ("kelvin", "1", "K"), "mol": ("mole", "1", "mol"), "cd": ("candela", "1", "cd"),
    "Hz": ("hertz", "1", "s-1"), "N": ("newton", "1", "kg m s-2"), "Pa": ("pascal", "1", "kg m-1 s-2"),
    "J": ("joule", "1", "kg m2 s-2"), "W": ("watt", "1", "kg m2 s-3"), "V": ("volt", "1", "kg m2 s-3 A-1"),
    "Ω": ("ohm", "1", "kg m2 s-3 A-2"), "L": ("litre liter", "1/1000", "m3"), "l": ("", "1/1000", "m3"),
    "B": ("byte", "8", "bit"), "bit": ("", "1", "bit"), "cal": ("calorie", "4.184", "kg m2 s-2"),
    "Wh": ("", "3600", "kg m2 s-2"), "t": ("tonne", "1000", "kg"), "bar": ("", "100000", "kg m-1 s-2"),
    "eV": ("electronvolt", "1.602176634e-19", "kg m2 s-2"),
}  # fmt: skip
_PLAIN_UNITS: dict[str, tuple[str, str, str]] = {
    "min": ("minute", "60", "s"), "h": ("hour hr", "3600", "s"), "d": ("day", "86400", "s"),
    "wk": ("week", "604800", "s"), "mo": ("month", "1", "month"), "yr": ("year", "12", "month"),
    "decade": ("", "120", "month"), "century": ("centuries", "1200", "month"),
    "in": ("inch inches", "0.0254", "m"), "ft": ("foot feet", "0.3048", "m"), "yd": ("yard", "0.9144", "m"),
    "mi": ("mile", "1609.344", "m"), "nmi": ("", "1852", "m"), "mph": ("", "0.44704", "m s-1"),
    "kph": ("kmh", "5/18", "m s-1"), "oz": ("ounce", "0.028349523125", "kg"), "lb": ("pound", "0.45359237", "kg"),
    "ton": ("", "907.18474", "kg"), "gal": ("gallon", "0.003785411784", "m3"),
    "qt": ("quart", "0.000946352946", "m3"), "pt": ("pint", "0.000473176473", "m3"),
    "cup": ("", "0.0002365882365", "m3"), "tbsp": ("tablespoon", "0.00001478676478125", "m3"),
    "tsp": ("teaspoon", "0.00000492892159375", "m3"), "cc": ("", "0.000001", "m3"), "acre": ("", "4046.8564224", "m2"),
    "ha": ("hectare", "10000", "m2"), "rad": ("radian", "1", "rad"),
    "°": ("degree deg", str(Fraction(math.pi) / 180), "rad"), "%": ("percent", "1/100", ""), "‰": ("", "1/1000", ""),
    "dozen": ("", "12", ""), "hundred": ("", "100", ""), "thousand": ("", "1000", ""),
    "million": ("mn", "1000000", ""), "billion": ("bn", "1000000000", ""), "trillion": ("", "1000000000000", ""),
    "$": ("dollar usd", "1", "dollar"), "¢": ("cent", "1/100", "dollar"), "€": ("euro eur", "1", "euro"),
    "£": ("gbp", "1", "sterling"), "¥": ("yen jpy", "1", "yen"), "₹": ("rupee inr", "1", "rupee"),
}  # fmt: skip
_TEMPERATURE_UNITS = {"celsius": (Fraction(1), "273.15"), "fahrenheit": (Fraction(5, 9), "459.67")}
_SUPERSCRIPTS = str.maketrans("⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹", "-+0123456789")
_POWER_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
MAX_POWER, MAX_PIECES = 9, 9
# an operator, "square" or "cubic", a word or sign, a power
PIECE = re.compile(
    r"\s*+(?:(?P<operator>/|per\b|[*·⋅×-])\s*+)?(?:(?P<before>square|sq|cubic|cu)\b\.?\s*+)?"
    r"(?P<word>[^\W\d_⁰¹²³⁴-⁹]+|[%‰°$€£¥₹¢])\.?(?P<power>[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹](?![⁰¹²³⁴⁵⁶⁷⁸⁹])|\d(?!\w))?"
)
MAX_EXPONENT = 400  # maximum power of ten in a number
_TEXT_COMMAND = re.compile(r"\\(?:text|textrm|mathrm|mbox|rm|operatorname)\s*\{([^{}]*?)\s*\}")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_MICRO = re.compile(r"\\mu\b\s*")
_SPACES = re.compile(r"\\[,;:! ]|~")
_TEMPERATURE = re.compile(r"(?:°|\bdeg(?:ree)?s?\b\.?)\s*(C|F)(?:elsius|ahrenheit)?\b", re.IGNORECASE)
_POWER = re.compile(r"\s*[⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹^]")  # a number raised to a power is another number
_EXPONENT = re.compile(r"(?:\^|\*\*)\s*([-−+]?\d{1,4})")
_SEPARATOR = re.compile(r"\s*+(?:(?:,|and)\s*+)?", re.IGNORECASE)
_TO_SUPERSCRIPT = str.maketrans("-−+0123456789", "⁻⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹")
_CURRENCY_SIGNS = "$€£¥₹"
_CURRENCY_CODE = re.compile(r"(?:\b(?:USD|EUR|GBP|JPY|INR)|[$€£¥₹])\s*$")


class Unit(NamedTuple):
    """Unit with ``factor`` base units and its zero at ``zero`` base units (non-zero for temperature scales only).

    >>> parse_unit("km/h")
    Unit(factor=Fraction(5, 18), dimensions=(('m', 1), ('s', -1)), zero=Fraction(0, 1))
    """

    factor: Fraction
    dimensions: Dimensions
    zero: Fraction = Fraction(0)


DIMENSIONLESS = Unit(Fraction(1), ())


def parse_unit(text: str) -> Unit | None:
    """Parse a unit name. The result is None if the text is anything else or longer.

    >>> parse_unit("square feet") == parse_unit("ft²"), parse_unit("apples")
    (True, None)
    """
    unit, end = match_unit(text, 0)
    return None if text[end:].strip(" .") else unit


def match_unit(text: str, start: int) -> tuple[Unit | None, int]:
    """Return the longest unit at a position of a text with its end, or None and ``start``.

    Args:
        text: text with raised powers, such as ``m²``.
        start: position in the text.
    """
    unit, end = DIMENSIONLESS, start
    for _ in range(MAX_PIECES):
        piece = PIECE.match(text, end)
        if piece is None:
            break
        operator, word = piece["operator"], piece["word"]
        if end == start and operator and operator not in ("/", "-", "per"):
            break
        word_unit = lookup_unit(word)
        if word_unit is None or (end > start and not operator and word == "in"):
            break
        exponent = int((piece["power"] or "1").translate(_SUPERSCRIPTS))
        power = exponent * _POWER_WORDS.get(piece["before"], 1) * (-1 if operator in ("/", "per") else 1)
        if abs(power) > MAX_POWER or (word_unit.zero and (power != 1 or end > start)):
            break
        unit, end = _multiply(unit, word_unit, power), piece.end()
        if word_unit.zero:
            break
    return (unit, end) if end > start else (None, start)


def lookup_unit(word: str) -> Unit | None:
    """Return the unit for one word, a symbol or a name, also in the plural: ``km``, ``kilometres``, ``lbs``."""
    lower = word.casefold()
    for candidate in (word, lower, lower.removesuffix("s"), lower.removesuffix("es")):
        if unit := _UNITS.get(candidate):
            return unit
    return None


def _multiply(unit: Unit, factor: Unit, power: int) -> Unit:
    dimensions = Counter(dict(unit.dimensions))
    for base, exponent in factor.dimensions:
        dimensions[base] += exponent * power
    nonzero = tuple(sorted((base, exponent) for base, exponent in dimensions.items() if exponent))
    return Unit(unit.factor * factor.factor**power, nonzero, factor.zero)


def _parse_dimensions(text: str) -> Dimensions:
    """Parse ``"kg m2 s-2"`` into powers by base unit."""
    return tuple(sorted((base, int(power or 1)) for base, power in re.findall(r"([a-zA-Z]+)(-?\d)?", text)))


def build_units() -> dict[str, Unit]:
    """Return all units by word.

    If a word is ambiguous, the unit without a prefix wins, then the earlier one.
    """
    units_by_word: dict[str, Unit] = {}
    rows = {**_PLAIN_UNITS, **_PREFIXABLE_UNITS}
    units = {symbol: Unit(Fraction(factor), _parse_dimensions(of)) for symbol, (_, factor, of) in rows.items()}
    for symbol, (names, _, _) in rows.items():
        for word in (symbol, *names.split()):
            units_by_word.setdefault(word, units[symbol])
    for name, (factor, zero) in _TEMPERATURE_UNITS.items():
        units_by_word[name] = Unit(factor, (("K", 1),), Fraction(zero) * factor)
    for symbol, (names, _, _) in _PREFIXABLE_UNITS.items():
        words = [(prefix + symbol, power) for prefix, power in _PREFIXES.items()]
        words += [(prefix + name, power) for name in names.split() for prefix, power in _PREFIX_NAMES.items()]
        for word, power in words:
            units_by_word.setdefault(word, Unit(units[symbol].factor * Fraction(10) ** power, units[symbol].dimensions))
    return units_by_word


_UNITS = build_units()


class Quantity(NamedTuple):
    """Value with a unit. Counted nouns that are not units have :data:`~marft.rewards.quantities.DIMENSIONLESS`."""

    value: Fraction
    unit: Unit

    @property
    def in_base_units(self) -> Fraction:
        """Value in base units."""
        return self.value * self.unit.factor + self.unit.zero

    def in_unit(self, unit: Unit) -> Fraction | None:
        """Convert the value to another unit. The result is None for a unit with other dimensions.

        >>> [parse_quantities(text)[0].in_unit(DIMENSIONLESS) for text in ("5 %", "3 km")]
        [Fraction(1, 20), None]
        """
        if unit.dimensions != self.unit.dimensions:
            return None
        return (self.in_base_units - unit.zero) / unit.factor


def parse_quantities(text: str) -> list[Quantity]:
    r"""Return all quantities in a text, in order.

    A quantity in several units counts once: ``1 h 30 min``, ``6 ft 3 in``.

    >>> [(float(found.in_base_units), found.unit.dimensions) for found in parse_quantities(r"3.5\text{ km}^2 or 20 °C")]
    [(3500000.0, (('m', 2),)), (293.15, (('K', 1),))]
    """
    text = _normalize(text)
    spans: list[tuple[Quantity, int]] = []  # with the end of each
    position = 0
    for number, start, end in find_numbers(text):
        if start < position or _POWER.match(text, end) or (number and abs(number.adjusted()) > MAX_EXPONENT):
            continue
        quantity, after = _attach_unit(Fraction(number), text, start, end)
        before = spans[-1] if spans else None
        if before and _is_compound(before[0], quantity) and _SEPARATOR.fullmatch(text, before[1], start):
            more = quantity.value * quantity.unit.factor / before[0].unit.factor
            spans[-1] = Quantity(before[0].value + more, before[0].unit), after
        else:
            spans.append((quantity, after))
        position = after
    return [quantity for quantity, _ in spans]


def _attach_unit(value: Fraction, text: str, start: int, end: int) -> tuple[Quantity, int]:
    """Return a number with its unit, and the end position.

    The unit is a currency before the number, or any unit after it.
    """
    unit, after = match_unit(text, end)
    sign = next((sign for sign in text[start:end] if sign in _CURRENCY_SIGNS), "")
    code = _CURRENCY_CODE.search(text, max(0, start - 8), start)
    if not sign and code:
        sign = code[0].strip()
    currency = lookup_unit(sign) if sign else None
    if currency is not None and (unit is None or not unit.dimensions):
        return Quantity(value, Unit((unit or DIMENSIONLESS).factor, currency.dimensions)), after
    return Quantity(value, unit or DIMENSIONLESS), after


def _is_compound(before: Quantity, quantity: Quantity) -> bool:
    """Return True if two quantities form a compound like 6 ft 3 in.

    Both have the same dimensions, and the later unit is smaller.
    """
    first, second = before.unit, quantity.unit
    if not first.dimensions or first.dimensions != second.dimensions or first.zero or second.zero:
        return False
    is_remainder = 0 <= quantity.value * second.factor < first.factor
    return second.factor < first.factor and is_remainder and before.value >= 0


def _normalize(text: str) -> str:
    r"""Convert LaTeX to plain text with raised powers: ``\text{ m}^{2}`` → `` m²``.

    Dollar signs around a formula are removed; others are currency.
    """
    text = text.strip()
    if text[:1] == text[-1:] == "$":
        text = text.strip("$")
    text = _SPACES.sub(" ", text.replace("\\$", "$").replace("\\%", "%"))
    text = _FRACTION.sub(r"\1/\2", _MICRO.sub("µ", _TEXT_COMMAND.sub(r" \1", text)))
    text = text.replace("\\times", "×").replace("\\cdot", "·").replace("{", "").replace("}", "")
    text = text.replace("^\\circ", "°").replace("\\circ", "°").replace("\\degree", "°")
    text = _EXPONENT.sub(lambda power: power[1].translate(_TO_SUPERSCRIPT), text)
    return _TEMPERATURE.sub(lambda scale: " celsius" if scale[1] in "cC" else " fahrenheit", text)
