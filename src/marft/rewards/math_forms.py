r"""What tells two mathematical answers apart that math-verify takes for one: it drops units and bases, takes a list for
the set of what is in it, and lets a pair equal a set. Pure functions of formulas between dollars."""

from __future__ import annotations

import re
from fractions import Fraction

from marft.rewards.quantities import quantities_in
from marft.rewards.units import Unit, unit_of

_SPACING = re.compile(r"\\left|\\right|\\[,;:! ]|[\s$]")
_THOUSANDS = re.compile(r"(?<=\d),(?:\\!)?\s*(?=\d{3}(?!\d))")
_BASE = re.compile(r"(-?)(?:\\text\{)?([0-9A-Z]+)\}?_\{?(\d{1,2})\}?")
_WORDED = re.compile(r"\d.*?\\(?:text|mbox|mathrm|textrm|rm)\s*\{([^{}]{1,60})\}\s*(?:\^\s*\{?(\d)\}?)?\$$", re.DOTALL)
_BARE = re.compile(r"\$-?[\d.,/]+\s+([A-Za-z][A-Za-z/ ]{0,30})(?:\^\s*\{?(\d)\}?)?\$")
NEAR = Fraction(1, 10**6)  # of a value in another unit


def told_apart(expected: str, stated: str) -> bool | None:
    r"""Whether two answers differ in what math-verify does not look at; None where it is to be asked.

    >>> told_apart("$-1,3,3$", "$-1,3$"), told_apart("$101_2$", "$101_{2}$"), told_apart("$(1,2)$", r"$\{1,2\}$")
    (True, False, True)
    >>> told_apart(r"$5\text{ m}$", r"$5\text{ cm}$"), told_apart("$5$", r"$5\text{ cm}$")
    (True, None)
    """
    if {brackets(expected), brackets(stated)} == {"(", "{"} or _repeated(expected) != _repeated(stated):
        return True
    one, other = (_BASE.fullmatch(_SPACING.sub("", formula)) for formula in (expected, stated))
    if one and other:  # the base is what was asked for: the same number in another one is no answer
        return one.groups() != other.groups()
    units = [_unit(formula) for formula in (expected, stated)]
    if units[0] is None or units[1] is None or units[0] == units[1]:
        return None
    return not _same_quantity(expected, stated)


def brackets(formula: str) -> str:
    """``"("`` for what is written as a pair, point or open interval, ``"{"`` for a set, else nothing."""
    plain = _SPACING.sub("", formula).replace("\\{", "{").replace("\\}", "}")
    return plain[0] if plain[:1] + plain[-1:] in ("()", "{}") else ""


def is_interval(formula: str) -> bool:
    r"""Whether a formula can be nothing but intervals: one has a square bracket, or ends nowhere.

    >>> is_interval(r"$[1,2)$"), is_interval(r"$(5,\infty)$"), is_interval("$(1,2)$")
    (True, True, False)
    """
    plain = _SPACING.sub("", formula)
    return "," in plain and plain[:1] in ("(", "[") and ("[" in plain or "]" in plain or "\\infty" in plain)


def elements(formula: str) -> list[str]:
    """What a list without brackets holds; commas at thousands part nothing.

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
    """How many more elements a list without brackets has than different ones.

    >>> _repeated("$-1,3,3$"), _repeated("$(1,1)$")
    (1, 0)
    """
    found = elements(formula)
    return len(found) - len(set(found))


def _unit(formula: str) -> Unit | None:
    """The unit that a formula ends with; None where it ends with none that is known."""
    found = _WORDED.search(formula) or _BARE.fullmatch(formula)
    return unit_of(found[1].strip() + (found[2] or "")) if found else None


def _same_quantity(expected: str, stated: str) -> bool:
    """Whether two numbers with units are as much, where each formula is one."""
    right, given = quantities_in(expected), quantities_in(stated)
    if len(right) != 1 or len(given) != 1 or right[0].unit.dimensions != given[0].unit.dimensions:
        return False
    one, other = right[0].in_base_units, given[0].in_base_units
    return abs(one - other) <= NEAR * abs(one)
