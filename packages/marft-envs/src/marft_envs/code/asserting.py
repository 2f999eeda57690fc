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

from marft_envs.code.comparing import Reader, Told
from marft_envs.code.judging import Call, EncodedCall, JudgingError, Limits, Outcome, outcomes
from marft_envs.code.problems import Asserts
from marft_envs.code.replay import RECORD

ROUNDS = 3  # rounds of calls to a program: later calls of a test may depend on earlier results
MOST_RECORDED = 16 * 2**20  # maximum characters of recorded results; a call beyond the limit fails
MOST_NEW, MOST_NEW_TEXT = 1000, 4 * 2**20  # maximum calls and characters in a round of dependent calls
HARNESS = """
def __tried__(source, names, replays):
    from marft_envs.code.replay import read_record, recording, replaying
    scope = dict(globals())
    return replaying(scope, source, names, read_record()) if replays else recording(scope, source, names)
"""
Calls = tuple[str, ...]  # each [name, arguments, keywords] as text
Record = dict[str, tuple[bool, str]]  # by call: True and a value's text, or False and an error's name


def calls_of(asserts: Asserts, limits: Limits) -> Calls:
    """Return the calls that the tests make to the reference functions.

    Raises:
        JudgingError: the reference functions fail a test; the message names the test.
    """
    calls: dict[str, None] = {}
    for test, (held, made, said) in zip(asserts.tests, _told(asserts, None, limits), strict=True):
        if not held:
            raise JudgingError(f"its own right program does not pass the test {test.strip()[:200]!r}: {said}")
        calls |= dict.fromkeys(made)
    return tuple(calls)


def held(asserts: Asserts, program: str, calls: Calls, limits: Limits, before: str = "") -> list[bool]:
    """Return for each test whether a program passes it.

    Args:
        asserts: tests to check.
        program: source of the program.
        calls: calls that the tests make to the reference functions.
        limits: limits of the program.
        before: code that runs before the program.
    """
    record: Record = {}
    asked: Sequence[str] = calls
    told: list[Told] = []
    for _ in range(ROUNDS):
        found = outcomes([program], [EncodedCall(call) for call in asked], limits, before)[0]
        record = _recorded(record, zip(asked, found, strict=True))
        told = _told(asserts, record, limits)
        asked = _new(told, record)
        if not asked:
            break
    return [test.held for test in told]


def _told(asserts: Asserts, record: Record | None, limits: Limits) -> list[Told]:
    """Run the tests on recorded results; without a record, on the reference functions."""
    given = [Call("__tried__", (test, list(asserts.names), record is not None)) for test in asserts.tests]
    lines = [json.dumps([call, *kept]).encode() + b"\n" for call, kept in (record or {}).items()]
    found = outcomes([asserts.before + HARNESS], given, limits, files={RECORD: b"".join(lines)})[0]
    reader = Reader(limits.all_seconds)
    return [reader.told(outcome) for outcome in found]


def _recorded(record: Record, found: Iterable[tuple[str, Outcome]]) -> Record:
    """Extend a record with the outcomes of further calls. Values stay as text, and are decoded only in the jail."""
    record = dict(record)
    left = MOST_RECORDED - sum(len(text) for _, text in record.values())
    for call, outcome in found:
        if outcome.fine and len(outcome.value) <= left:
            record[call] = (True, outcome.value)
            left -= len(outcome.value)
        elif outcome.fine:
            record[call] = (False, "MemoryError")
        else:
            record[call] = (False, outcome.said.partition(":")[0] if outcome.how == "raised" else "TimeoutError")
    return record


def _new(told: Sequence[Told], record: Record) -> list[str]:
    """Return missing calls, up to the limits for a round."""
    lacking = sorted({call for test in told for call in test.calls} - record.keys(), key=lambda call: (len(call), call))
    lengths = accumulate(map(len, lacking))
    return [call for call, length in zip(lacking, lengths, strict=True) if length <= MOST_NEW_TEXT][:MOST_NEW]


def statements_of(check: str) -> list[str]:
    """Split a function ``check(candidate)`` into tests.

    Each test is a statement with an assertion, after the preparing statements that it needs.

    >>> statements_of("def check(candidate):\\n    n = 2\\n    assert candidate(n) == 4\\n    assert candidate(3) == 9")
    ['n = 2\\nassert candidate(n) == 4', 'assert candidate(3) == 9']

    Raises:
        ValueError: the text is not Python, has no function ``check``, or asserts nothing.
    """
    try:
        body = ast.parse(check).body
    except SyntaxError as error:
        raise ValueError(f"is no Python: {error.msg} (line {error.lineno})") from error
    function = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == "check"), None)
    if function is None:
        raise ValueError("defines no function check(candidate)")
    before: list[ast.stmt] = [node for node in body if node is not function]
    tests: list[str] = []
    for node in function.body:
        if not any(isinstance(inner, ast.Assert) for inner in ast.walk(node)):
            before.append(node)
        elif not (isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant)):  # assert True tests nothing
            tests.append("\n".join(map(ast.unparse, [*_needed(before, node), node])))
    if not tests:
        raise ValueError("asserts nothing")
    return tests


def _needed(before: Sequence[ast.stmt], test: ast.stmt) -> list[ast.stmt]:
    """Return the preparing statements that a test needs: every statement except assignments to unused names."""
    used, needed = _names(test), list[ast.stmt]()
    for node in reversed(before):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if targets and all(isinstance(target, ast.Name) and target.id not in used for target in targets):
            continue
        used |= _names(node)
        needed.insert(0, node)
    return needed


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def names_in(tests: Sequence[str], code: str) -> tuple[str, ...]:
    """Return functions defined in code and called by tests, in the order of their definition.

    Raises:
        ValueError: the code or a test is not Python, or the tests call no defined function.
    """
    try:
        called = {
            node.func.id
            for test in tests
            for node in ast.walk(ast.parse(test))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        defined = [node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
    except SyntaxError as error:
        raise ValueError(f"is no Python: {error.msg} (line {error.lineno})") from error
    names = tuple(name for name in dict.fromkeys(defined) if name in called)
    if not names:
        raise ValueError(f"call no function that the solution defines ({json.dumps(defined)})")
    return names
