"""Tests that are code, without showing them to the program that they test.

The tests run three times: once, for all programs, with functions that are right, which tells the calls that they
make; these calls are put to the program in a jail of its own; and once, in another jail, with what the program
returned in the place of the program.
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

ROUNDS = 3  # in which calls are put to a program: what a test calls may follow from what it was returned
MOST_RECORDED = 16 * 2**20  # characters of what a program returns to tests; a call beyond them fails
MOST_NEW, MOST_NEW_TEXT = 1000, 4 * 2**20  # calls of a round that follow from what was returned, and their characters
HARNESS = """
def __tried__(source, names, replays):
    from marft_envs.code.replay import read_record, recording, replaying
    scope = dict(globals())
    return replaying(scope, source, names, read_record()) if replays else recording(scope, source, names)
"""
Calls = tuple[str, ...]  # each [name, arguments, keywords] as text
Record = dict[str, tuple[bool, str]]  # by call: True and the text of a value, or False and the name of an error


def calls_of(asserts: Asserts, limits: Limits) -> Calls:
    """The calls that the tests make of right functions.

    Raises:
        JudgingError: the right functions do not pass a test; the message says which.
    """
    calls: dict[str, None] = {}
    for test, (held, made, said) in zip(asserts.tests, _told(asserts, None, limits), strict=True):
        if not held:
            raise JudgingError(f"its own right program does not pass the test {test.strip()[:200]!r}: {said}")
        calls |= dict.fromkeys(made)
    return tuple(calls)


def held(asserts: Asserts, program: str, calls: Calls, limits: Limits, before: str = "") -> list[bool]:
    """Which tests a program passes.

    Args:
        calls: those that the tests make of right functions.
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
    """What the tests say: of a record, or without one of the functions that are there."""
    given = [Call("__tried__", (test, list(asserts.names), record is not None)) for test in asserts.tests]
    lines = [json.dumps([call, *kept]).encode() + b"\n" for call, kept in (record or {}).items()]
    found = outcomes([asserts.before + HARNESS], given, limits, files={RECORD: b"".join(lines)})[0]
    reader = Reader(limits.all_seconds)
    return [reader.told(outcome) for outcome in found]


def _recorded(record: Record, found: Iterable[tuple[str, Outcome]]) -> Record:
    """The record with what came of further calls; texts of values are not decoded here, but in the jail."""
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
    """Calls that tests lack, as many as are made in a round."""
    lacking = sorted({call for test in told for call in test.calls} - record.keys(), key=lambda call: (len(call), call))
    lengths = accumulate(map(len, lacking))
    return [call for call, length in zip(lacking, lengths, strict=True) if length <= MOST_NEW_TEXT][:MOST_NEW]


def statements_of(check: str) -> list[str]:
    """The tests in a function ``check(candidate)``: each statement that asserts something, after those that prepare it.

    >>> statements_of("def check(candidate):\\n    n = 2\\n    assert candidate(n) == 4\\n    assert candidate(3) == 9")
    ['n = 2\\nassert candidate(n) == 4', 'assert candidate(3) == 9']

    Raises:
        ValueError: it defines no such function, or is no Python.
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
    """What a test needs of what stands before it: all but the values of names that it does not use."""
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
    """Functions that code defines and tests call, in the order in which they are defined.

    Raises:
        ValueError: there are none, or one of them is no Python.
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
