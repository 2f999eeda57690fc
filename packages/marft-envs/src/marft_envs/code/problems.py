"""Programming problems, and the rules for right outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from marft_envs.code.execution import CaseInput, FunctionCall, Outcome
from marft_envs.code.plain_values import tuples_to_lists, values_equal


@dataclass(frozen=True, slots=True)
class Case:
    """Input with its right results. Each is a value or a printed text, and any match counts."""

    input: CaseInput
    expected: tuple[Any, ...]
    as_json: bool = False  # treat tuples and lists as equal
    as_set: bool = False  # ignore the order and repetition of list items
    absolute: float = 0.0  # absolute tolerance for floats, unless the recipe allows more
    relative: float = 0.0  # relative tolerance for floats, unless the recipe allows more


@dataclass(frozen=True, slots=True)
class AssertTests:
    """Code tests: statements that call functions by ``names``, in the scope of ``setup_code``.

    ``setup_code`` is trusted code that defines every name in the tests. If it defines the functions under test, they
    are used to find the calls that the tests make.
    """

    setup_code: str
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
    asserts: AssertTests | None = None  # hidden tests as code
    setup_code: str = ""  # code that runs before every program
    # Start of the program, used if a program does not define the entry itself.
    program_start: str = ""
    reference: str = ""  # right program; "" if unknown
    wrong_programs: tuple[str, ...] = ()  # known wrong programs
    checker: str = ""  # program that decides if a printed output is right
    seconds: float = 0.0  # CPU seconds per input; 0: the recipe's limit
    memory_mb: int = 0  # memory limit in MiB; 0: the recipe's limit

    @property
    def test_count(self) -> int:
        """Return the number of hidden tests."""
        return len(self.asserts.tests) if self.asserts else len(self.cases)

    def complete_program(self, program: str) -> str:
        """Return the program to run, without the code before it.

        The problem's opening is prepended if the program does not define the entry.
        """
        if self.program_start and not re.search(rf"^def\s+{re.escape(self.entry)}\b", program, re.MULTILINE):
            return self.program_start + program
        return program


def outcome_passes(case: Case, outcome: Outcome, tolerance: float) -> bool:
    """Return True if an outcome is right.

    Args:
        case: case with the right results.
        outcome: outcome of the program.
        tolerance: absolute or relative tolerance for a ``float``, or for a printed number.
    """
    if not outcome.is_ok:
        return False
    if case.as_set:
        return any(_same_set(expected, outcome.value) for expected in case.expected)
    if not isinstance(case.input, FunctionCall):
        return any(outputs_match(expected, outcome.value, tolerance) for expected in case.expected)
    if case.as_json:
        try:
            value = tuples_to_lists(outcome.value)
        except RecursionError:  # nested deeper than any right value
            return False
        return any(values_equal(tuples_to_lists(expected), value, tolerance, tolerance) for expected in case.expected)
    absolute, relative = max(tolerance, case.absolute), max(tolerance, case.relative)
    return any(values_equal(expected, outcome.value, absolute, relative) for expected in case.expected)


def _same_set(expected: Any, value: Any) -> bool:
    try:
        expected_set = set(expected)  # our own values: colliding hashes in the output do not slow this set down
        return {item for item in value if item in expected_set} == expected_set and all(
            item in expected_set for item in value
        )
    except TypeError:  # the value is not iterable, or has unhashable items
        return False


def outputs_match(expected: str, printed: str, tolerance: float = 0.0) -> bool:
    """Compare a printed text with the right text, line by line.

    Spaces around lines and empty lines at both ends are ignored. Lines with only numbers are compared as numbers
    (LiveCodeBench's rule).

    >>> outputs_match("1 2\\n3.50\\n", "1 2 \\n3.5"), outputs_match("1 2", "1\\n2"), outputs_match("0.3", "0.33", 0.1)
    (True, False, True)
    """
    expected_lines, printed_lines = (
        [line.strip() for line in text.strip().split("\n")] for text in (expected, printed)
    )
    return len(expected_lines) == len(printed_lines) and all(
        _lines_match(a, b, tolerance) for a, b in zip(expected_lines, printed_lines, strict=True)
    )


def _lines_match(expected: str, printed: str, tolerance: float) -> bool:
    if expected == printed:
        return True
    expected_numbers, printed_numbers = _parse_numbers(expected), _parse_numbers(printed)
    if not expected_numbers or len(expected_numbers) != len(printed_numbers):
        return False
    return all(_numbers_close(a, b, tolerance) for a, b in zip(expected_numbers, printed_numbers, strict=True))


def _parse_numbers(line: str) -> Sequence[Decimal]:
    """Parse a line with only numbers; empty if it has anything else."""
    try:
        return [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return []


def _numbers_close(expected: Decimal, actual: Decimal, tolerance: float) -> bool:
    if not (expected.is_finite() and actual.is_finite()):
        return str(expected).lower() == str(actual).lower()
    if expected == actual:
        return True
    if not tolerance:
        return False
    try:
        return abs(expected - actual) <= Decimal(tolerance) * max(Decimal(1), abs(expected))
    except ArithmeticError:  # exponents out of range
        return False
