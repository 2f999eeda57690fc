"""What a program is asked to do, and how it is known whether it does."""

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
    """One input, and what is right for it: any of these values, or of these printed texts."""

    given: Given
    right: tuple[Any, ...]
    as_json: bool = False  # tuples and lists are the same
    as_set: bool = False  # neither order nor number counts of what is in a list
    absolute: float = 0.0  # that floats may be off, where the recipe does not allow for more
    relative: float = 0.0  # the same, as a share of them


@dataclass(frozen=True, slots=True)
class Asserts:
    """Tests that are code: statements that call functions by ``names``, in the scope of ``before``.

    ``before`` is trusted code that defines all that the tests use; where it defines the functions themselves, those
    tell which calls the tests make.
    """

    before: str
    names: tuple[str, ...]
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem. Without ``entry`` a program reads standard input and prints; else that function is called."""

    statement: str
    entry: str = ""
    examples: tuple[Case, ...] = ()  # that the team is shown
    cases: tuple[Case, ...] = ()  # that nobody is shown
    asserts: Asserts | None = None  # the same, as code
    before: str = ""  # code that runs before every program
    opening: str = ""  # code that a program goes on from where it does not define the entry itself
    reference: str = ""  # a right program; "": none is known
    wrong: tuple[str, ...] = ()  # programs that are known to be wrong
    checker: str = ""  # a program that says whether what was printed is right
    seconds: float = 0.0  # of processor time for each input; 0: the recipe says
    memory_mb: int = 0  # the same

    @property
    def tests(self) -> int:
        """How many tests nobody is shown."""
        return len(self.asserts.tests) if self.asserts else len(self.cases)

    def whole(self, program: str) -> str:
        """A program as it is run, after the code before it."""
        if self.opening and not re.search(rf"^def\s+{re.escape(self.entry)}\b", program, re.MULTILINE):
            return self.opening + program
        return program


def passes(case: Case, outcome: Outcome, tolerance: float) -> bool:
    """Whether what came of a case is right.

    Args:
        tolerance: how far a ``float``, or a number that is printed, may be off: absolutely, or relatively to the
        right one.
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
        except RecursionError:  # deeper than any right one
            return False
        return any(same(unified(right), value, tolerance, tolerance) for right in case.right)
    absolute, relative = max(tolerance, case.absolute), max(tolerance, case.relative)
    return any(same(right, outcome.value, absolute, relative) for right in case.right)


def _same_members(right: Any, value: Any) -> bool:
    try:
        wanted = set(right)  # our own: values whose hashes collide cost nothing in there
        return {item for item in value if item in wanted} == wanted and all(item in wanted for item in value)
    except TypeError:  # it holds nothing, or what no set holds
        return False


def printed_alike(right: str, printed: str, tolerance: float = 0.0) -> bool:
    """Whether a printed text is the right one: line by line, but for spaces around lines and empty lines around all;
    a line of numbers may write them otherwise (LiveCodeBench's rule).

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
    """The numbers of a line that holds nothing else."""
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
    except ArithmeticError:  # beyond all exponents
        return False
