"""Programming problems, and the rules for right outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from marft_envs.code.judging import Call, Given, Outcome
from marft_envs.code.plain import same, unified


@dataclass(frozen=True, slots=True)
class Case:
    """Input with its right results. Each is a value or a printed text, and any match counts."""

    given: Given
    right: tuple[Any, ...]
    as_json: bool = False  # treat tuples and lists as equal
    as_set: bool = False  # ignore the order and repetition of list items
    absolute: float = 0.0  # absolute tolerance for floats, unless the recipe allows more
    relative: float = 0.0  # relative tolerance for floats, unless the recipe allows more


@dataclass(frozen=True, slots=True)
class Asserts:
    """Code tests: statements that call functions by ``names``, in the scope of ``before``.

    ``before`` is trusted code that defines every name in the tests. If it defines the functions under test, they are
    used to find the calls that the tests make.
    """

    before: str
    names: tuple[str, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Programming problem.

    With ``entry``, tests call that function. Without it, a program reads standard input and prints.
    """

    statement: str
    entry: str = ""
    examples: tuple[Case, ...] = ()  # shown cases
    cases: tuple[Case, ...] = ()  # hidden cases
    asserts: Asserts | None = None  # hidden tests as code
    before: str = ""  # code that runs before every program
    # Start of the program, used if a program does not define the entry itself.
    opening: str = ""
    reference: str = ""  # right program; "" if unknown
    wrong: tuple[str, ...] = ()  # known wrong programs
    checker: str = ""  # program that decides if a printed output is right
    seconds: float = 0.0  # CPU seconds per input; 0: the recipe's limit
    memory_mb: int = 0  # memory limit in MiB; 0: the recipe's limit

    @property
    def tests(self) -> int:
        """Return the number of hidden tests."""
        return len(self.asserts.tests) if self.asserts else len(self.cases)

    def whole(self, program: str) -> str:
        """Return the program to run, without the code before it.

        The problem's opening is prepended if the program does not define the entry.
        """
        if self.opening and not re.search(rf"^def\s+{re.escape(self.entry)}\b", program, re.MULTILINE):
            return self.opening + program
        return program


def passes(case: Case, outcome: Outcome, tolerance: float) -> bool:
    """Return True if an outcome is right.

    Args:
        case: case with the right results.
        outcome: outcome of the program.
        tolerance: absolute or relative tolerance for a ``float``, or for a printed number.
    """
    if not outcome.fine:
        return False
    if case.as_set:
        return any(_same_members(right, outcome.value) for right in case.right)
    if not isinstance(case.given, Call):
        return any(printed_alike(right, outcome.value, tolerance) for right in case.right)
    if case.as_json:
        try:
            value = unified(outcome.value)
        except RecursionError:  # nested deeper than any right value
            return False
        return any(same(unified(right), value, tolerance, tolerance) for right in case.right)
    absolute, relative = max(tolerance, case.absolute), max(tolerance, case.relative)
    return any(same(right, outcome.value, absolute, relative) for right in case.right)


def _same_members(right: Any, value: Any) -> bool:
    try:
        wanted = set(right)  # our own values: colliding hashes in the output do not slow this set down
        return {item for item in value if item in wanted} == wanted and all(item in wanted for item in value)
    except TypeError:  # the value is not iterable, or has unhashable items
        return False


def printed_alike(right: str, printed: str, tolerance: float = 0.0) -> bool:
    """Compare a printed text with the right text, line by line.

    Spaces around lines and empty lines at both ends are ignored. Lines with only numbers are compared as numbers
    (LiveCodeBench's rule).

    >>> printed_alike("1 2\\n3.50\\n", "1 2 \\n3.5"), printed_alike("1 2", "1\\n2"), printed_alike("0.3", "0.33", 0.1)
    (True, False, True)
    """
    wanted, got = ([line.strip() for line in text.strip().split("\n")] for text in (right, printed))
    return len(wanted) == len(got) and all(_alike(a, b, tolerance) for a, b in zip(wanted, got, strict=True))


def _alike(right: str, printed: str, tolerance: float) -> bool:
    if right == printed:
        return True
    wanted, got = _numbers(right), _numbers(printed)
    if not wanted or len(wanted) != len(got):
        return False
    return all(_near(a, b, tolerance) for a, b in zip(wanted, got, strict=True))


def _numbers(line: str) -> Sequence[Decimal]:
    """Parse a line with only numbers; empty if it has anything else."""
    try:
        return [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return []


def _near(right: Decimal, given: Decimal, tolerance: float) -> bool:
    if not (right.is_finite() and given.is_finite()):
        return str(right).lower() == str(given).lower()
    if right == given:
        return True
    if not tolerance:
        return False
    try:
        return abs(right - given) <= Decimal(tolerance) * max(Decimal(1), abs(right))
    except ArithmeticError:  # exponents out of range
        return False
