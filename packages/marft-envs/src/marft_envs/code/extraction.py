"""Parsing of agent-written programs and tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Sequence

from marft_envs.code.execution import FunctionCall, StdinInput
from marft_envs.code.plain_values import encode
from marft_envs.code.problems import Case

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
