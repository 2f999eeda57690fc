"""Quantities in texts: numbers with units, in LaTeX or plain notation."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from marft.rewards.comparing import placed_numbers
from marft.rewards.units import NONE, Unit, unit_at, word_for

LARGEST_EXPONENT = 400  # maximum power of ten in a number
_WORDS = re.compile(r"\\(?:text|textrm|mathrm|mbox|rm|operatorname)\s*\{([^{}]*?)\s*\}")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_MICRO = re.compile(r"\\mu\b\s*")
_SPACES = re.compile(r"\\[,;:! ]|~")
_SCALE = re.compile(r"(?:°|\bdeg(?:ree)?s?\b\.?)\s*(C|F)(?:elsius|ahrenheit)?\b", re.IGNORECASE)
_POWER = re.compile(r"\s*[⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹^]")  # a number raised to a power is another number
_RAISED = re.compile(r"(?:\^|\*\*)\s*([-−+]?\d{1,4})")
_BETWEEN = re.compile(r"\s*+(?:(?:,|and)\s*+)?", re.IGNORECASE)
_UP = str.maketrans("-−+0123456789", "⁻⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹")
_CURRENCIES = "$€£¥₹"
_CODES = re.compile(r"(?:\b(?:USD|EUR|GBP|JPY|INR)|[$€£¥₹])\s*$")


class Quantity(NamedTuple):
    """Value with a unit. Counted nouns that are not units have :data:`~marft.rewards.units.NONE`."""

    value: Fraction
    unit: Unit

    @property
    def in_base_units(self) -> Fraction:
        """Value in base units."""
        return self.value * self.unit.factor + self.unit.zero

    def in_unit(self, unit: Unit) -> Fraction | None:
        """Convert the value to another unit. The result is None for a unit with other dimensions.

        >>> [quantities_in(text)[0].in_unit(NONE) for text in ("5 %", "3 km")]
        [Fraction(1, 20), None]
        """
        if unit.dimensions != self.unit.dimensions:
            return None
        return (self.in_base_units - unit.zero) / unit.factor


def quantities_in(text: str) -> list[Quantity]:
    r"""Return all quantities in a text, in order.

    A quantity in several units counts once: ``1 h 30 min``, ``6 ft 3 in``.

    >>> [(float(found.in_base_units), found.unit.dimensions) for found in quantities_in(r"3.5\text{ km}^2 or 20 °C")]
    [(3500000.0, (('m', 2),)), (293.15, (('K', 1),))]
    """
    text = _plain(text)
    found: list[tuple[Quantity, int]] = []  # with the end of each
    taken = 0
    for number, start, end in placed_numbers(text):
        if start < taken or _POWER.match(text, end) or (number and abs(number.adjusted()) > LARGEST_EXPONENT):
            continue
        quantity, after = _with_unit(Fraction(number), text, start, end)
        before = found[-1] if found else None
        if before and _continues(before[0], quantity) and _BETWEEN.fullmatch(text, before[1], start):
            more = quantity.value * quantity.unit.factor / before[0].unit.factor
            found[-1] = Quantity(before[0].value + more, before[0].unit), after
        else:
            found.append((quantity, after))
        taken = after
    return [quantity for quantity, _ in found]


def _with_unit(value: Fraction, text: str, start: int, end: int) -> tuple[Quantity, int]:
    """Return a number with its unit, and the end position.

    The unit is a currency before the number, or any unit after it.
    """
    unit, after = unit_at(text, end)
    sign = next((sign for sign in text[start:end] if sign in _CURRENCIES), "")
    code = _CODES.search(text, max(0, start - 8), start)
    if not sign and code:
        sign = code[0].strip()
    money = word_for(sign) if sign else None
    if money is not None and (unit is None or not unit.dimensions):
        return Quantity(value, Unit((unit or NONE).factor, money.dimensions)), after
    return Quantity(value, unit or NONE), after


def _continues(before: Quantity, quantity: Quantity) -> bool:
    """Return True if two quantities form a compound like 6 ft 3 in.

    Both have the same dimensions, and the later unit is smaller.
    """
    one, other = before.unit, quantity.unit
    same = bool(one.dimensions) and one.dimensions == other.dimensions and not (one.zero or other.zero)
    return same and other.factor < one.factor and 0 <= quantity.value * other.factor < one.factor and before.value >= 0


def _plain(text: str) -> str:
    r"""Convert LaTeX to plain text with raised powers: ``\text{ m}^{2}`` → `` m²``.

    Dollar signs around a formula are removed; others are currency.
    """
    text = text.strip()
    if text[:1] == text[-1:] == "$":
        text = text.strip("$")
    text = _SPACES.sub(" ", text.replace("\\$", "$").replace("\\%", "%"))
    text = _FRACTION.sub(r"\1/\2", _MICRO.sub("µ", _WORDS.sub(r" \1", text)))
    text = text.replace("\\times", "×").replace("\\cdot", "·").replace("{", "").replace("}", "")
    text = text.replace("^\\circ", "°").replace("\\circ", "°").replace("\\degree", "°")
    text = _RAISED.sub(lambda power: power[1].translate(_UP), text)
    return _SCALE.sub(lambda scale: " celsius" if scale[1] in "cC" else " fahrenheit", text)
