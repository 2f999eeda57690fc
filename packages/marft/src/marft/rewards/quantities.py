"""Quantities in texts: numbers with units, in LaTeX or plain notation."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from marft.rewards.text_match import find_numbers
from marft.rewards.units import DIMENSIONLESS, Unit, lookup_unit, match_unit

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


class Quantity(NamedTuple):
    """Value with a unit. Counted nouns that are not units have :data:`~marft.rewards.units.DIMENSIONLESS`."""

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
    first_unit, second_unit = before.unit, quantity.unit
    same = (
        bool(first_unit.dimensions)
        and first_unit.dimensions == second_unit.dimensions
        and not (first_unit.zero or second_unit.zero)
    )
    return (
        same
        and second_unit.factor < first_unit.factor
        and 0 <= quantity.value * second_unit.factor < first_unit.factor
        and before.value >= 0
    )


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
