"""Programming problems, the rules for right outputs, and their texts.

Texts are short reports for the team on visible cases, and the programs and tests that agents write.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from marft.common.texts import truncate
from marft_envs.code.execution import CaseInput, FunctionCall, Outcome, StdinInput
from marft_envs.code.plain_values import encode, safe_repr, tuples_to_lists, values_equal


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


MAX_VALUE = 200  # maximum characters of a value
MAX_CASES = 6  # maximum reported cases
STATUS_TEXTS = {
    "timed_out": "ran out of time",
    "too_much_output": "printed too much",
    "died": "ended the process",
    "not_run": "was not run: no time was left",
}
RIGHT_TEXT = "right"


def describe_case(case: Case) -> str:
    """Describe a case: ``f(2) == 5``, or its input and output texts."""
    if isinstance(case.input, FunctionCall):
        return f"{describe_call(case.input)} == {truncate(safe_repr(case.expected[0]), MAX_VALUE)}"
    expected = truncate(str(case.expected[0]), MAX_VALUE).rstrip()
    return f"Input:\n{truncate(case.input.text, MAX_VALUE).rstrip()}\nOutput:\n{expected}"


def describe_call(call: FunctionCall) -> str:
    """Describe a call: ``f(2, y=[1])``."""
    words = [*map(safe_repr, call.arguments), *(f"{key}={safe_repr(value)}" for key, value in call.keywords.items())]
    return truncate(f"{call.entry}({', '.join(words)})", MAX_VALUE)


def format_report(cases: tuple[tuple[Case, Outcome, bool], ...]) -> str:
    """Report cases, one per line, wrong cases first: ``f(2) gives 6, not 5``; ``f(1) gives 4: right``.

    Args:
        cases: cases with their outcomes in report form (:class:`marft_envs.code.comparison.OutputReader`), and True if
            right.
    """
    ordered = sorted(cases, key=lambda entry: entry[2])
    return "\n".join(_format_line(*entry) for entry in ordered[:MAX_CASES])


def _format_line(case: Case, outcome: Outcome, right: bool) -> str:
    if isinstance(case.input, FunctionCall):
        call_text, expected = describe_call(case.input), safe_repr(case.expected[0])
    else:
        call_text, expected = (
            truncate(f"Input {case.input.text.strip()!r}", MAX_VALUE),
            repr(str(case.expected[0]).strip()),
        )
    if outcome.status == "raised":
        return f"{call_text} fails: {truncate(outcome.error, MAX_VALUE)}"
    if not outcome.is_ok:
        return f"{call_text} {STATUS_TEXTS[outcome.status]}"
    gives_text = f"{call_text} gives {outcome.value}"
    return f"{gives_text}: {RIGHT_TEXT}" if right else f"{gives_text}, not {truncate(expected, MAX_VALUE)}"


CODE_BLOCK = re.compile(
    r"^[ \t]*+(`{3,}+|~{3,}+)[ \t]*+(\w*+)[^\n]*+\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE
)
INPUT_OUTPUT = re.compile(
    r"Input:[ \t]*\n?(.*?)\n[ \t]*+Output:[ \t]*\n?(.*?)(?=\n[ \t]*+Input:|\Z)", re.DOTALL | re.IGNORECASE
)
MAX_TEXT = 8000  # maximum characters of tests
MAX_TESTS = 8  # maximum tests per agent


def extract_program(text: str) -> str:
    """Extract the program from an agent's text: the last Python code block, else the full text.

    >>> extract_program("So:\\n```python\\nprint(1)\\n```\\nDone.")
    'print(1)\\n'
    """
    blocks = [(language, code) for _, language, code in CODE_BLOCK.findall(text)]
    python_blocks = [code for language, code in blocks if language.lower() in ("python", "py", "python3", "")]
    return python_blocks[-1] if python_blocks else text.strip()


def extract_tests(text: str, entry: str, names: Sequence[str]) -> list[Case]:
    """Extract distinct tests from an agent's text, in order.

    Tests are lines such as ``f(2) == 5``. Without an entry they are pairs with ``Input:`` and ``Output:``.

    >>> [case.expected for case in extract_tests("assert f(2) == 5\\nf([1]) == [2]\\nnonsense", "f", ())]
    [(5,), ([2],)]

    Args:
        text: text of the agent.
        entry: function under test; "" for programs that read and print.
        names: further functions that tests may call.
    """
    text = text[:MAX_TEXT]
    if not entry:
        pairs = [(input_text.strip("\n") + "\n", expected) for input_text, expected in INPUT_OUTPUT.findall(text)]
        return [Case(StdinInput(input_text), (expected,)) for input_text, expected in dict(pairs).items()][:MAX_TESTS]
    cases: dict[str, Case] = {}
    for line in text.splitlines():
        case = parse_call_case(line.strip(), {entry, *names})
        if case is not None:
            assert isinstance(case.input, FunctionCall)
            cases.setdefault(encode([case.input.entry, list(case.input.arguments), dict(case.input.keywords)]), case)
    return list(cases.values())[:MAX_TESTS]


def parse_call_case(line: str, names: Container[str]) -> Case | None:
    """Parse a case from a line ``f(2) == 5``, with or without ``assert``.

    Return None if the line is not a call of a function in ``names`` with plain values.

    >>> parse_call_case("assert f(2) == 5, 'why'", {"f"}).input.arguments
    (2,)
    """
    try:
        body = ast.parse(line).body
        statement = body[0] if len(body) == 1 else None
        test = statement.test if isinstance(statement, ast.Assert) else getattr(statement, "value", None)
        if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
            return None
        call = test.left
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in names):
            return None
        arguments = tuple(ast.literal_eval(argument) for argument in call.args)
        keywords = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
        expected = ast.literal_eval(test.comparators[0])
        encode([list(arguments), keywords, expected])
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return Case(FunctionCall(call.func.id, arguments, keywords), (expected,))
