"""Tests that are code, without showing them to the program that they test.

The tests run three times: once, for all programs, with functions that are right, which tells the calls that they
make; these calls are put to the program in a jail of its own; and once, in another jail, with what the program
returned in the place of the program.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence

from marft.envs.code.judging import Call, JudgingError, Limits, Outcome, outcomes
from marft.envs.code.plain import decode, encode
from marft.envs.code.problems import Asserts

ROUNDS = 3  # in which calls are put to a program: what a test calls may follow from what it was returned
HARNESS = """
def __tried__(source, names, record):
    from marft.envs.code.replay import recording, replaying
    scope = dict(globals())
    return recording(scope, source, names) if record is None else replaying(scope, source, names, record)
"""
Calls = tuple[str, ...]  # each [name, arguments, keywords] as text


def calls_of(asserts: Asserts, limits: Limits) -> Calls:
    """The calls that the tests make of right functions.

    Raises:
        JudgingError: the right functions do not pass a test; the message says which.
    """
    given = [Call("__tried__", (test, list(asserts.names), None)) for test in asserts.tests]
    calls: dict[str, None] = {}
    for test, outcome in zip(asserts.tests, outcomes([asserts.before + HARNESS], given, limits)[0], strict=True):
        held, made, said = outcome.value if outcome.fine else (False, [], outcome.said or outcome.how)
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
    record: dict[str, list[object]] = {}
    asked: Sequence[str] = calls
    told: list[Outcome] = []
    for _ in range(ROUNDS):
        found = outcomes([program], [_call(key) for key in asked], limits, before)[0]
        record |= {key: _recorded(outcome) for key, outcome in zip(asked, found, strict=True)}
        given = [Call("__tried__", (test, list(asserts.names), record)) for test in asserts.tests]
        told = outcomes([asserts.before + HARNESS], given, limits)[0]
        asked = sorted({key for outcome in told if outcome.fine for key in outcome.value[1]} - record.keys())
        if not asked:
            break
    return [outcome.fine and outcome.value[0] is True for outcome in told]


def _call(key: str) -> Call:
    name, arguments, keywords = decode(key)
    return Call(name, tuple(arguments), keywords)


def _recorded(outcome: Outcome) -> list[object]:
    if outcome.fine:
        return [True, encode(outcome.value)]
    return [False, outcome.said.partition(":")[0] if outcome.how == "raised" else "TimeoutError"]


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
