"""Published column layouts, with a function per layout that parses a row into a problem."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from marft.config.settings import did_you_mean
from marft.envs.rows import Row
from marft_envs.code import standard
from marft_envs.code.asserting import names_in, statements_of
from marft_envs.code.judging import Call, Feed
from marft_envs.code.packed import unpacked
from marft_envs.code.plus import plus_cases
from marft_envs.code.problems import Asserts, Case, Problem
from marft_envs.code.proposing import call_in
from marft_envs.code.reports import case_in_words

MOST_SECONDS, MOST_MB = 600, 65536  # maximum limits that a row may set
STDIN = "Write a Python program that reads standard input and prints."


class Read(NamedTuple):
    """Problem with its name from the row."""

    name: str
    problem: Problem


def humaneval(row: Row, shown: int) -> Read:  # noqa: ARG001  its prompts show examples themselves
    """Parse HumanEval or HumanEval+: ``task_id``, ``prompt``, ``entry_point``, ``canonical_solution``, ``test``."""
    prompt, entry = row.text("prompt"), row.text("entry_point")
    solution = prompt + row.text("canonical_solution")
    at = re.search(rf"^def\s+{re.escape(entry)}\b", prompt, re.MULTILINE)
    if at is None or not entry.isidentifier():
        raise ValueError(f"column 'prompt' does not define {entry!r}")
    statement = f"Complete this Python function, and give it whole.\n\n```python\n{prompt.rstrip()}\n```"
    plus = plus_cases(row.text("test"), entry)
    cases, asserts = (
        (tuple(plus), None) if plus else _tests(statements_of(row.text("test")), {"candidate": entry}, solution)
    )
    problem = Problem(
        statement, entry, cases=cases, asserts=asserts, before=prompt[: at.start()], opening=prompt[at.start() :],
        reference=solution,
    )  # fmt: skip
    return Read(row.text("task_id"), problem)


def mbpp(row: Row, shown: int) -> Read:
    """Parse MBPP, full or sanitized, or MBPP+.

    Columns: ``text`` or ``prompt``, ``code``, ``test_list``, and optional imports, setup and challenge tests. In MBPP+,
    the tests in ``test`` count.
    """
    code = row.text("code")
    tests = [
        *_texts(row, "test_list"),
        *(_texts(row, "challenge_test_list") if "challenge_test_list" in row.cells else ()),
    ]
    names = names_in(tests, code)
    imports = _texts(row, "test_imports") if "test_imports" in row.cells else []
    setup = row.text("test_setup_code") if "test_setup_code" in row.cells else ""
    before = "\n".join([*imports, setup, code]) + "\n"
    plus = plus_cases(row.text("test")) if "test" in row.cells else None
    if plus is None and _maybe(row, "test").strip():
        raise ValueError("has tests beside test_list (column 'test') that are not EvalPlus's, and cannot be read")
    count = min(shown, len(tests) if plus else len(tests) - 1)
    told = tests[:count] or [f"{name}(…)" for name in names]
    words = row.text("text" if "text" in row.cells else "prompt")
    statement = f"{words.strip()}\nThe program must pass tests such as these:\n" + "\n".join(told)
    called = {name: name for name in names}
    examples = [case for test in tests[:count] if (case := call_in(test, names)) is not None]
    if plus:
        given = [case.given for case in examples]
        cases, asserts = tuple(case for case in plus if case.given not in given), None
    else:
        cases, asserts = _tests(tests[count:], called, before)
    problem = Problem(statement, names[-1], tuple(examples), cases, asserts, reference=code)
    return Read(f"mbpp/{row.text('task_id')}", problem)


def apps(row: Row, shown: int) -> Read:  # noqa: ARG001  its questions show examples themselves
    """Parse APPS.

    Columns: ``question``, ``input_output`` (JSON, with ``fn_name`` for functions), ``solutions`` (JSON),
    ``starter_code``.
    """
    tests = _json(row, "input_output")
    if (
        not isinstance(tests, dict)
        or not isinstance(tests.get("inputs"), list)
        or not isinstance(tests.get("outputs"), list)
    ):
        raise ValueError("column 'input_output' holds no table with inputs and outputs")
    entry = str(tests.get("fn_name") or "")
    if len(tests["inputs"]) != len(tests["outputs"]):
        raise ValueError(
            f"column 'input_output' has {len(tests['inputs'])} inputs and {len(tests['outputs'])} outputs; each has one"
        )
    pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
    cases = [_called(entry, given, right) if entry else _fed(given, right) for given, right in pairs]
    starter = row.text("starter_code").strip() if "starter_code" in row.cells else ""
    solutions = _json(row, "solutions") if "solutions" in row.cells and row.text("solutions").strip() else []
    reference = str(solutions[0]) if isinstance(solutions, list) and solutions else ""
    asked = f"Begin with:\n{starter}" if starter else (f"Write the function {entry}." if entry else STDIN)
    statement = f"{row.text('question').strip()}\n\n{asked}"
    name = next((row.text(key) for key in ("problem_id", "id") if key in row.cells), "")
    problem = Problem(statement, entry, cases=tuple(cases), before=standard.APPS, reference=reference)
    return Read(f"apps/{name}" if name else "", problem)


def livecodebench(row: Row, shown: int) -> Read:  # noqa: ARG001  what is public is shown
    """Parse LiveCodeBench.

    Columns: ``question_content``, ``public_test_cases``, ``private_test_cases``, ``metadata``, ``starter_code``.
    """
    metadata = _json(row, "metadata") if "metadata" in row.cells and row.text("metadata").strip() else {}
    entry = str(metadata.get("func_name") or "") if isinstance(metadata, dict) else ""
    cases = {}
    for column in ("public_test_cases", "private_test_cases"):
        try:
            cells = row.cells.get(column)
            tests = cells if isinstance(cells, list) else unpacked(row.text(column))
            cases[column] = tuple(_livecodebench_case(entry, test) for test in tests)
        except (KeyError, TypeError) as error:
            raise ValueError(f"column {column!r} holds no tests with input and output ({error!r})") from error
        except ValueError as error:
            raise ValueError(f"column {column!r} {error}") from error
    starter = row.text("starter_code").strip() if "starter_code" in row.cells else ""
    statement = f"{row.text('question_content').strip()}\n\n" + (f"Begin with:\n{starter}" if starter else STDIN)
    public, private = cases["public_test_cases"], cases["private_test_cases"]
    problem = Problem(statement, entry, public, private, before=standard.LIVECODEBENCH)
    return Read(row.text("question_id") if "question_id" in row.cells else "", problem)


def codeforces(row: Row, shown: int) -> Read:  # noqa: ARG001  its examples are shown
    """Parse Codeforces (open-r1/codeforces).

    Columns: ``description``, ``examples``, ``official_tests``, ``generated_checker``.
    """
    if _maybe(row, "interaction_format"):
        raise ValueError("is interactive, and programs here only read and print")
    if (mode := _maybe(row, "input_mode")) not in ("", "stdio"):
        raise ValueError(f"reads and writes by {mode!r}, and programs here read standard input")
    examples = [_pair(test) for test in _tables(row, "examples")]
    shown_inputs = {case.given.text for case in examples if isinstance(case.given, Feed)}
    official = [_pair(test) for test in _tables(row, "official_tests")]
    hidden = [case for case in official if isinstance(case.given, Feed) and case.given.text not in shown_inputs]
    parts = [
        _maybe(row, "title"), _maybe(row, "description"),
        *(f"{title}\n{_maybe(row, key)}" for title, key in (("Input", "input_format"), ("Output", "output_format"))),
        *map(_example, examples),
        f"Note\n{_maybe(row, 'note')}" if _maybe(row, "note") else "", STDIN,
    ]  # fmt: skip
    problem = Problem(
        "\n\n".join(part for part in parts if part), examples=tuple(examples), cases=tuple(hidden),
        checker=_maybe(row, "generated_checker"), seconds=_amount(row, "time_limit", MOST_SECONDS),
        memory_mb=int(_amount(row, "memory_limit", MOST_MB)),
    )  # fmt: skip
    return Read(_maybe(row, "id"), problem)


def plain(row: Row, shown: int) -> Read:
    """Parse MARFT's own layout.

    Columns: ``question``, and ``tests`` (a list of objects with ``input`` and ``output``). Optional columns: ``entry``
    (a function's name; inputs are then argument lists), ``solution``, and ``wrong`` (a list of wrong programs).
    """
    entry, tests = _maybe(row, "entry"), _json(row, "tests")
    if not isinstance(tests, list) or not all(
        isinstance(test, dict) and test.keys() >= {"input", "output"} for test in tests
    ):
        raise ValueError('column \'tests\' holds no list of tests, such as [{"input": [2], "output": 5}]')
    if entry and not all(isinstance(test["input"], list) for test in tests):
        raise ValueError("column 'tests': the input of a function is a list of its arguments, such as [2]")
    cases = [
        Case(Call(entry, tuple(test["input"])), (test["output"],), True)
        if entry
        else _fed(test["input"], test["output"])
        for test in tests
    ]
    count = min(shown, len(cases) - 1)
    question = row.text("question").strip()
    if not question:
        raise ValueError("asks nothing")
    statement = "\n".join([question, *map(case_in_words, cases[:count]), *([] if entry else [STDIN])])
    wrong = tuple(_texts(row, "wrong")) if "wrong" in row.cells else ()
    problem = Problem(
        statement, entry, tuple(cases[:count]), tuple(cases[count:]), reference=_maybe(row, "solution"), wrong=wrong
    )
    return Read(_maybe(row, "id"), problem)


FORMATS: Mapping[str, Callable[[Row, int], Read]] = {
    "apps": apps, "codeforces": codeforces, "humaneval": humaneval, "livecodebench": livecodebench, "mbpp": mbpp,
    "plain": plain,
}  # fmt: skip
KNOWN_BY = {
    "apps": {"question", "input_output"}, "codeforces": {"official_tests", "description"},
    "humaneval": {"canonical_solution", "entry_point", "test"},
    "livecodebench": {"question_content", "private_test_cases"}, "mbpp": {"test_list", "code"},
    "plain": {"question", "tests"},
}  # fmt: skip


def format_of(row: Row) -> str:
    """Detect the layout from a row's columns.

    Raises:
        ValueError: the columns match no layout.
    """
    found = next((name for name, columns in KNOWN_BY.items() if columns <= row.cells.keys()), "")
    if not found:
        wanted = "; ".join(f"{name}: {', '.join(sorted(columns))}" for name, columns in KNOWN_BY.items())
        near = did_you_mean(str(next(iter(row.cells), "")), set().union(*KNOWN_BY.values()))
        raise ValueError(f"environment: {row.place}: its columns are of no layout that is known ({wanted}){near}")
    return found


def _tests(tests: Sequence[str], called: Mapping[str, str], before: str) -> tuple[tuple[Case, ...], Asserts | None]:
    """Parse code tests; return cases if each test has the form ``assert f(2) == 5``, else assert tests.

    Cases need a single jail.

    Args:
        tests: source code of the tests.
        called: functions by their names in the tests.
        before: code that defines every name in the tests.
    """
    cases = [call_in(test.strip(), called) for test in tests]
    if None in cases:
        try:
            ast.parse(before)
        except SyntaxError as error:
            raise ValueError(f"has a solution that is no Python: {error.msg} (line {error.lineno})") from error
        return (), Asserts(before, tuple(called.values()), tuple(tests))
    found = [case for case in cases if case is not None and isinstance(case.given, Call)]
    return tuple(replace(one, given=replace(one.given, entry=called[one.given.entry])) for one in found), None  # type: ignore[arg-type, union-attr]


def _called(entry: str, given: Any, right: Any) -> Case:
    """Build a case with a call. The right result is the output, or the output's first item."""
    if not isinstance(given, list):
        raise ValueError(f"column 'input_output': an input of {entry} is no list of arguments")
    either = (right, right[0]) if isinstance(right, list) and right else (right,)
    return Case(Call(entry, tuple(given)), either, True)


def _fed(given: Any, right: Any) -> Case:
    """Build a case with input and output texts. A list is joined into lines."""
    texts = ["\n".join(map(str, text)) if isinstance(text, list) else str(text) for text in (given, right)]
    return Case(Feed(texts[0]), (texts[1],))


def _livecodebench_case(entry: str, test: Mapping[str, Any]) -> Case:
    if not entry:
        return _fed(test["input"], test["output"])
    arguments = tuple(json.loads(line) for line in str(test["input"]).split("\n"))
    return Case(Call(entry, arguments), (json.loads(str(test["output"])),), True)


def _pair(test: Any) -> Case:
    if not isinstance(test, Mapping) or not test.keys() >= {"input", "output"}:
        raise ValueError("has tests without input and output")
    return _fed(test["input"], test["output"])


def _example(case: Case) -> str:
    assert isinstance(case.given, Feed)
    return f"Example\nInput:\n{case.given.text.rstrip()}\nOutput:\n{case.right[0].rstrip()}"


def _json(row: Row, column: str) -> Any:
    cell = row.cell(column)
    if not isinstance(cell, str):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"column {column!r} is not JSON ({error})") from error


def _texts(row: Row, column: str) -> list[str]:
    cell = row.cell(column)
    cell = _json(row, column) if isinstance(cell, str) and cell.strip() else cell or []
    if not isinstance(cell, list) or not all(isinstance(text, str) for text in cell):
        raise ValueError(f"column {column!r} holds no list of texts")
    return list(cell)


def _maybe(row: Row, column: str) -> str:
    return row.text(column) if column in row.cells else ""


def _tables(row: Row, column: str) -> list[Any]:
    """Return a list cell; empty if missing."""
    cell = row.cells.get(column)
    if cell is None:
        return []
    if not isinstance(cell, list):
        raise ValueError(f"column {column!r} holds no list of tests")
    return cell


def _amount(row: Row, column: str, most: float) -> float:
    """Return a limit from 0 to ``most``; 0 if missing."""
    value = row.cells.get(column) or 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ValueError(f"column {column!r} holds {str(value)[:40]}, which is no limit from 0 to {most:,}")
    return float(value)
