"""Assert tests, hidden from the program under test.

The tests run in three stages. First they run once per problem with the reference functions, to record the calls that
they make. Then the program runs these calls in its own jail. Last, the tests run in another jail, with the recorded
results in place of the program.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Sequence
from itertools import accumulate

from marft.common.errors import UserError
from marft_envs.code.comparison import AssertResult, OutputReader
from marft_envs.code.execution import EncodedCall, FunctionCall, JudgeError, Limits, Outcome, run_programs
from marft_envs.code.problems import AssertTests
from marft_envs.code.replay import RECORD

MAX_ROUNDS = 3  # rounds of calls to a program: later calls of a test may depend on earlier results
MAX_RECORDED = 16 * 2**20  # maximum characters of recorded results; a call beyond the limit fails
MAX_NEW_CALLS, MAX_NEW_TEXT = 1000, 4 * 2**20  # maximum calls and characters in a round of dependent calls
HARNESS = """
def __tried__(source, names, replays):
    from marft_envs.code.replay import read_record, run_recording, run_replaying
    scope = dict(globals())
    return run_replaying(scope, source, names, read_record()) if replays else run_recording(scope, source, names)
"""
Calls = tuple[str, ...]  # each [name, arguments, keywords] as text
Record = dict[str, tuple[bool, str]]  # by call: True and a value's text, or False and an error's name


def record_reference_calls(asserts: AssertTests, limits: Limits) -> Calls:
    """Return the calls that the tests make to the reference functions.

    Raises:
        JudgeError: the reference functions fail a test; the message names the test.
    """
    calls: dict[str, None] = {}
    for test, (passed, made_calls, message) in zip(asserts.tests, _run_tests(asserts, None, limits), strict=True):
        if not passed:
            raise JudgeError(f"its own right program does not pass the test {test.strip()[:200]!r}: {message}")
        calls |= dict.fromkeys(made_calls)
    return tuple(calls)


def run_asserts(asserts: AssertTests, program: str, calls: Calls, limits: Limits, setup_code: str = "") -> list[bool]:
    """Return for each test whether a program passes it.

    Args:
        asserts: tests to check.
        program: source of the program.
        calls: calls that the tests make to the reference functions.
        limits: limits of the program.
        setup_code: code that runs before the program.
    """
    record: Record = {}
    pending: Sequence[str] = calls
    results: list[AssertResult] = []
    for _ in range(MAX_ROUNDS):
        outcomes_found = run_programs([program], [EncodedCall(call) for call in pending], limits, setup_code)[0]
        record = _extend_record(record, zip(pending, outcomes_found, strict=True))
        results = _run_tests(asserts, record, limits)
        pending = _missing_calls(results, record)
        if not pending:
            break
    return [test.passed for test in results]


def _run_tests(asserts: AssertTests, record: Record | None, limits: Limits) -> list[AssertResult]:
    """Run the tests on recorded results; without a record, on the reference functions."""
    test_calls = [FunctionCall("__tried__", (test, list(asserts.names), record is not None)) for test in asserts.tests]
    lines = [json.dumps([call, *result]).encode() + b"\n" for call, result in (record or {}).items()]
    outcomes_found = run_programs([asserts.setup_code + HARNESS], test_calls, limits, files={RECORD: b"".join(lines)})[
        0
    ]
    reader = OutputReader(limits.all_seconds)
    return [reader.read_assert_result(outcome) for outcome in outcomes_found]


def _extend_record(record: Record, call_outcomes: Iterable[tuple[str, Outcome]]) -> Record:
    """Extend a record with the outcomes of further calls. Values stay as text, and are decoded only in the jail."""
    record = dict(record)
    remaining = MAX_RECORDED - sum(len(text) for _, text in record.values())
    for call, outcome in call_outcomes:
        if outcome.is_ok and len(outcome.value) <= remaining:
            record[call] = (True, outcome.value)
            remaining -= len(outcome.value)
        elif outcome.is_ok:
            record[call] = (False, "MemoryError")
        else:
            record[call] = (False, outcome.error.partition(":")[0] if outcome.status == "raised" else "TimeoutError")
    return record


def _missing_calls(results: Sequence[AssertResult], record: Record) -> list[str]:
    """Return missing calls, up to the limits for a round."""
    missing = sorted(
        {call for test in results for call in test.calls} - record.keys(), key=lambda call: (len(call), call)
    )
    lengths = accumulate(map(len, missing))
    return [call for call, length in zip(missing, lengths, strict=True) if length <= MAX_NEW_TEXT][:MAX_NEW_CALLS]


def split_check(check: str) -> list[str]:
    """Split a function ``check(candidate)`` into tests.

    Each test is a statement with an assertion, after the preparing statements that it needs.

    >>> split_check("def check(candidate):\\n    n = 2\\n    assert candidate(n) == 4\\n    assert candidate(3) == 9")
    ['n = 2\\nassert candidate(n) == 4', 'assert candidate(3) == 9']

    Raises:
        UserError: the text is not Python, has no function ``check``, or asserts nothing.
    """
    try:
        body = ast.parse(check).body
    except SyntaxError as error:
        raise UserError(f"is no Python: {error.msg} (line {error.lineno})") from error
    function = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == "check"), None)
    if function is None:
        raise UserError("defines no function check(candidate)")
    setup: list[ast.stmt] = [node for node in body if node is not function]
    tests: list[str] = []
    for node in function.body:
        if not any(isinstance(inner, ast.Assert) for inner in ast.walk(node)):
            setup.append(node)
        elif not (isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant)):  # assert True tests nothing
            tests.append("\n".join(map(ast.unparse, [*_required_statements(setup, node), node])))
    if not tests:
        raise UserError("asserts nothing")
    return tests


def _required_statements(setup: Sequence[ast.stmt], test: ast.stmt) -> list[ast.stmt]:
    """Return the preparing statements that a test needs: every statement except assignments to unused names."""
    used, needed = _used_names(test), list[ast.stmt]()
    for node in reversed(setup):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if targets and all(isinstance(target, ast.Name) and target.id not in used for target in targets):
            continue
        used |= _used_names(node)
        needed.insert(0, node)
    return needed


def _used_names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def find_functions(tests: Sequence[str], code: str) -> tuple[str, ...]:
    """Return functions defined in code and called by tests, in the order of their definition.

    Raises:
        UserError: the code or a test is not Python, or the tests call no defined function.
    """
    try:
        called_names = {
            node.func.id
            for test in tests
            for node in ast.walk(ast.parse(test))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        defined = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
    except SyntaxError as error:
        raise UserError(f"is no Python: {error.msg} (line {error.lineno})") from error
    names = tuple(name for name in dict.fromkeys(defined) if name in called_names)
    if not names:
        raise UserError(f"call no function that the solution defines ({json.dumps(defined)})")
    return names
