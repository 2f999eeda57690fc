"""Published column layouts, with a function per layout that parses a row into a problem.

Nothing is executed. EvalPlus's tests are code in a fixed form: inputs, results, and a loop that compares them. Liu et
al. 2023 (arXiv:2305.01210); ``tools/humaneval/to_original_fmt.py`` and ``tools/mbpp/to_original_fmt.py`` write them.
LiveCodeBench's tests are packed: JSON, or JSON in a pickle, compressed, as base64; nothing is unpickled. Some datasets'
own judges provide imports to every program, such as the names for ``List[int]``.
"""

from __future__ import annotations

import ast
import base64
import binascii
import json
import math
import pickletools
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from marft.common.errors import UserError
from marft.config.settings import did_you_mean
from marft.envs.table_rows import Row
from marft_envs.code.assert_tests import find_functions, split_check
from marft_envs.code.execution import FunctionCall, StdinInput
from marft_envs.code.plain_values import encode
from marft_envs.code.problems import AssertTests, Case, Problem, describe_case, parse_call_case

STAR_MODULES = (
    "string",
    "re",
    "datetime",
    "collections",
    "heapq",
    "bisect",
    "copy",
    "math",
    "random",
    "statistics",
    "itertools",
    "functools",
    "operator",
    "io",
    "sys",
    "json",
)
RECURSION_LIMIT = 50_000  # recursion limit, in calls


def import_preamble(*more: str) -> str:
    """Return the imports from LiveCodeBench's judge (``lcb_runner/evaluation/testing_util.py``).

    They import all names from many modules, then restore the built-in names, then import the modules. The judge's
    recursion limit is set too.

    Args:
        more: names of further modules.
    """
    names = [f"from {module} import *" for module in (*STAR_MODULES, "builtins", "typing")]
    modules = [f"import {module}" for module in (*STAR_MODULES, *more)]
    return "\n".join([*names, *modules, f"sys.setrecursionlimit({RECURSION_LIMIT})\n"])


LIVECODEBENCH_IMPORTS = import_preamble()
# The judge of APPS (eval/testing_util.py) also provides numpy, which is not available here.
APPS_IMPORTS = import_preamble("fractions", "time")


MAX_BYTES = 1 << 29  # maximum bytes of unpacked tests
SAFE_OPCODES = {
    "PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP",
    "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE",
}  # fmt: skip


def unpack_tests(text: str) -> Any:
    """Unpack a column of tests.

    Unpickling would run foreign code. Therefore a pickle is only disassembled into its opcodes. If its only content is
    a single text, that text is used; any other pickle is refused.

    Raises:
        UserError: the column cannot be read. The message names the cause and the remedy.
    """
    if text.lstrip().startswith("["):
        return _parse_json(text)
    try:
        decompressor = zlib.decompressobj()
        decompressed = decompressor.decompress(base64.b64decode(text.encode(), validate=True), MAX_BYTES)
    except (binascii.Error, zlib.error, UnicodeEncodeError) as error:
        raise UserError(f"is neither JSON nor compressed tests in base64 ({error})") from error
    if decompressor.unconsumed_tail:
        raise UserError(f"unpacks to more than {MAX_BYTES >> 20} MiB")
    if decompressed[:1] in (b"[", b"{"):
        return _parse_json(decompressed.decode("utf-8", "replace"))
    return _parse_json(_read_text_pickle(decompressed))


def _read_text_pickle(pickled: bytes) -> str:
    try:
        steps = [(step.name, argument) for step, argument, _ in pickletools.genops(pickled)]
    except ValueError as error:
        raise UserError(f"unpacks to what is neither JSON nor a pickle ({error})") from error
    texts = [argument for name, argument in steps if "UNICODE" in name]
    others = sorted({name for name, _ in steps} - SAFE_OPCODES)
    if others or len(texts) != 1 or not isinstance(texts[0], str):
        more = ", ".join(others[:5]) or "no text"
        raise UserError(
            f"holds a pickle that is more than one text ({more}), and reading it would run it; where you trust its "
            "source, write the column anew as JSON: json.dumps(…) of the unpickled tests"
        )
    return texts[0]


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"is not JSON ({error})") from error


COMPARISON_LOOP = re.compile(
    r"for i, \(inp, exp\) in enumerate\(zip\(inputs, results\)\):\n    assertion\((\w+)\(\*inp\), exp, ([\w.+-]+)\)"
)
ELEMENTWISE_CALLS, SET_CALLS = (
    {"is_floats", "allclose"},
    {"is_floats", "allclose", "set"},
)  # functions called by ``assertion``
# tolerances for floats: the default if the row sets none, and numpy's relative tolerance
ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE = 1e-6, 1e-7
SPECIAL_FLOATS = {"inf": math.inf, "nan": math.nan}


def parse_evalplus(test: str, entry: str = "") -> list[Case] | None:
    """Parse the cases in a test's code; None if the code is not from EvalPlus.

    Args:
        test: code of the test.
        entry: function under test; "" for the name in the test.

    Raises:
        UserError: the code is from EvalPlus, but compares neither value by value nor as sets.
    """
    try:
        module = ast.parse(test).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    functions = {node.name: node for node in module if isinstance(node, ast.FunctionDef)}
    if "assertion" not in functions:
        return None
    body = functions["check"].body if "check" in functions else module
    inputs_list, expected = (_literal(body, name) for name in ("inputs", "results"))
    loop = next((loop_match for node in body if isinstance(node, ast.For) and (loop_match := _match_loop(node))), None)
    called_names = _called_names(functions["assertion"])
    if loop is None or called_names not in (ELEMENTWISE_CALLS, SET_CALLS) or not _are_call_lists(inputs_list, expected):
        raise UserError("has tests of EvalPlus that are more than inputs, results and whether they are equal")
    tolerance = float(loop[2])
    return [
        _make_case(FunctionCall(entry or loop[1], tuple(inputs)), result, tolerance, called_names == SET_CALLS)
        for inputs, result in zip(inputs_list, expected, strict=True)
    ]


def _match_loop(node: ast.For) -> re.Match[str] | None:
    return COMPARISON_LOOP.fullmatch(ast.unparse(node))


def _literal(body: Sequence[ast.stmt], name: str) -> Any:
    """Return the literal value assigned to a name; None if missing or not a literal."""
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            try:
                value = ast.literal_eval(_Numbers().visit(node.value))
                encode(value)
            except (ValueError, TypeError, RecursionError, MemoryError):
                return None
            return value
    return None


class _Numbers(ast.NodeTransformer):
    """Transformer that replaces the names ``inf`` and ``nan`` with numbers."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(SPECIAL_FLOATS[node.id]) if node.id in SPECIAL_FLOATS else node


def _called_names(function: ast.FunctionDef) -> set[str]:
    """Return the names that an asserting function calls; empty if it asserts nothing."""
    nodes = list(ast.walk(function))
    if not any(isinstance(node, ast.Assert) for node in nodes):
        return set()
    return {
        node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        for node in nodes
        if isinstance(node, ast.Call)
    }


def _are_call_lists(inputs_list: Any, expected: Any) -> bool:
    lists = isinstance(inputs_list, list) and isinstance(expected, list) and len(inputs_list) == len(expected)
    return lists and all(isinstance(inputs, list) for inputs in inputs_list)


def _make_case(call: FunctionCall, expected: Any, tolerance: float, as_set: bool) -> Case:
    if as_set:
        return Case(call, (expected,), as_set=True)
    absolute = tolerance or (ABSOLUTE_TOLERANCE if _is_floats(expected) else 0.0)
    return Case(call, (expected,), absolute=absolute, relative=RELATIVE_TOLERANCE if absolute else 0.0)


def _is_floats(value: Any) -> bool:
    """Return True if the value is a float, or a nonempty list or tuple with only floats."""
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(item, float) for item in value)
    return isinstance(value, float)


MAX_SECONDS, MAX_MB = 600, 65536  # maximum limits that a row may set
STDIN_STATEMENT = "Write a Python program that reads standard input and prints."


class ParsedRow(NamedTuple):
    """Problem with its name from the row."""

    name: str
    problem: Problem


def parse_humaneval(row: Row, example_count: int) -> ParsedRow:  # noqa: ARG001  its prompts show examples themselves
    """Parse HumanEval or HumanEval+: ``task_id``, ``prompt``, ``entry_point``, ``canonical_solution``, ``test``."""
    prompt, entry = row.text("prompt"), row.text("entry_point")
    solution = prompt + row.text("canonical_solution")
    definition = re.search(rf"^def\s+{re.escape(entry)}\b", prompt, re.MULTILINE)
    if definition is None or not entry.isidentifier():
        raise UserError(f"column 'prompt' does not define {entry!r}")
    statement = f"Complete this Python function, and give it whole.\n\n```python\n{prompt.rstrip()}\n```"
    plus = parse_evalplus(row.text("test"), entry)
    cases, asserts = (
        (tuple(plus), None) if plus else _parse_tests(split_check(row.text("test")), {"candidate": entry}, solution)
    )
    problem = Problem(
        statement,
        entry,
        cases=cases,
        asserts=asserts,
        setup_code=prompt[: definition.start()],
        program_start=prompt[definition.start() :],
        reference=solution,
    )
    return ParsedRow(row.text("task_id"), problem)


def parse_mbpp(row: Row, example_count: int) -> ParsedRow:
    """Parse MBPP, full or sanitized, or MBPP+.

    Columns: ``text`` or ``prompt``, ``code``, ``test_list``, and optional imports, setup and challenge tests. In MBPP+,
    the tests in ``test`` count.
    """
    code = row.text("code")
    tests = [
        *_read_texts(row, "test_list"),
        *(_read_texts(row, "challenge_test_list") if "challenge_test_list" in row.cells else ()),
    ]
    names = find_functions(tests, code)
    imports = _read_texts(row, "test_imports") if "test_imports" in row.cells else []
    setup = row.text("test_setup_code") if "test_setup_code" in row.cells else ""
    before = "\n".join([*imports, setup, code]) + "\n"
    plus = parse_evalplus(row.text("test")) if "test" in row.cells else None
    if plus is None and _optional_text(row, "test").strip():
        raise UserError("has tests beside test_list (column 'test') that are not EvalPlus's, and cannot be read")
    count = min(example_count, len(tests) if plus else len(tests) - 1)
    shown_tests = tests[:count] or [f"{name}(…)" for name in names]
    words = row.text("text" if "text" in row.cells else "prompt")
    statement = f"{words.strip()}\nThe program must pass tests such as these:\n" + "\n".join(shown_tests)
    functions = {name: name for name in names}
    examples = [case for test in tests[:count] if (case := parse_call_case(test, names)) is not None]
    if plus:
        example_inputs = [case.input for case in examples]
        cases, asserts = tuple(case for case in plus if case.input not in example_inputs), None
    else:
        cases, asserts = _parse_tests(tests[count:], functions, before)
    problem = Problem(statement, names[-1], tuple(examples), cases, asserts, reference=code)
    return ParsedRow(f"mbpp/{row.text('task_id')}", problem)


def parse_apps(row: Row, example_count: int) -> ParsedRow:  # noqa: ARG001  its questions show examples themselves
    """Parse APPS.

    Columns: ``question``, ``input_output`` (JSON, with ``fn_name`` for functions), ``solutions`` (JSON),
    ``starter_code``.
    """
    tests = _read_json(row, "input_output")
    if (
        not isinstance(tests, dict)
        or not isinstance(tests.get("inputs"), list)
        or not isinstance(tests.get("outputs"), list)
    ):
        raise UserError("column 'input_output' holds no table with inputs and outputs")
    entry = str(tests.get("fn_name") or "")
    if len(tests["inputs"]) != len(tests["outputs"]):
        raise UserError(
            f"column 'input_output' has {len(tests['inputs'])} inputs and {len(tests['outputs'])} outputs; each has one"
        )
    pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
    cases = [
        _call_case(entry, case_input, expected) if entry else _text_case(case_input, expected)
        for case_input, expected in pairs
    ]
    starter = row.text("starter_code").strip() if "starter_code" in row.cells else ""
    solutions = _read_json(row, "solutions") if "solutions" in row.cells and row.text("solutions").strip() else []
    reference = str(solutions[0]) if isinstance(solutions, list) and solutions else ""
    instruction = (
        f"Begin with:\n{starter}" if starter else (f"Write the function {entry}." if entry else STDIN_STATEMENT)
    )
    statement = f"{row.text('question').strip()}\n\n{instruction}"
    name = next((row.text(key) for key in ("problem_id", "id") if key in row.cells), "")
    problem = Problem(statement, entry, cases=tuple(cases), setup_code=APPS_IMPORTS, reference=reference)
    return ParsedRow(f"apps/{name}" if name else "", problem)


def parse_livecodebench(row: Row, example_count: int) -> ParsedRow:  # noqa: ARG001  what is public is shown
    """Parse LiveCodeBench.

    Columns: ``question_content``, ``public_test_cases``, ``private_test_cases``, ``metadata``, ``starter_code``.
    """
    metadata = _read_json(row, "metadata") if "metadata" in row.cells and row.text("metadata").strip() else {}
    entry = str(metadata.get("func_name") or "") if isinstance(metadata, dict) else ""
    cases = {}
    for column in ("public_test_cases", "private_test_cases"):
        try:
            cells = row.cells.get(column)
            tests = cells if isinstance(cells, list) else unpack_tests(row.text(column))
            cases[column] = tuple(_livecodebench_case(entry, test) for test in tests)
        except (KeyError, TypeError) as error:
            raise UserError(f"column {column!r} holds no tests with input and output ({error!r})") from error
        except ValueError as error:
            raise UserError(f"column {column!r} {error}") from error
    starter = row.text("starter_code").strip() if "starter_code" in row.cells else ""
    statement = f"{row.text('question_content').strip()}\n\n" + (
        f"Begin with:\n{starter}" if starter else STDIN_STATEMENT
    )
    public, private = cases["public_test_cases"], cases["private_test_cases"]
    problem = Problem(statement, entry, public, private, setup_code=LIVECODEBENCH_IMPORTS)
    return ParsedRow(row.text("question_id") if "question_id" in row.cells else "", problem)


def parse_codeforces(row: Row, example_count: int) -> ParsedRow:  # noqa: ARG001  its examples are shown
    """Parse Codeforces (open-r1/codeforces).

    Columns: ``description``, ``examples``, ``official_tests``, ``generated_checker``.
    """
    if _optional_text(row, "interaction_format"):
        raise UserError("is interactive, and programs here only read and print")
    if (mode := _optional_text(row, "input_mode")) not in ("", "stdio"):
        raise UserError(f"reads and writes by {mode!r}, and programs here read standard input")
    examples = [_input_output_case(test) for test in _read_list(row, "examples")]
    shown_inputs = {case.input.text for case in examples if isinstance(case.input, StdinInput)}
    official = [_input_output_case(test) for test in _read_list(row, "official_tests")]
    hidden = [case for case in official if isinstance(case.input, StdinInput) and case.input.text not in shown_inputs]
    parts = [
        _optional_text(row, "title"),
        _optional_text(row, "description"),
        *(
            f"{title}\n{_optional_text(row, key)}"
            for title, key in (("Input", "input_format"), ("Output", "output_format"))
        ),
        *map(_format_example, examples),
        f"Note\n{_optional_text(row, 'note')}" if _optional_text(row, "note") else "",
        STDIN_STATEMENT,
    ]
    problem = Problem(
        "\n\n".join(part for part in parts if part),
        examples=tuple(examples),
        cases=tuple(hidden),
        checker=_optional_text(row, "generated_checker"),
        seconds=_read_limit(row, "time_limit", MAX_SECONDS),
        memory_mb=int(_read_limit(row, "memory_limit", MAX_MB)),
    )
    return ParsedRow(_optional_text(row, "id"), problem)


def parse_plain(row: Row, example_count: int) -> ParsedRow:
    """Parse MARFT's own layout.

    Columns: ``question``, and ``tests`` (a list of objects with ``input`` and ``output``). Optional columns: ``entry``
    (a function's name; inputs are then argument lists), ``solution``, and ``wrong`` (a list of wrong programs).
    """
    entry, tests = _optional_text(row, "entry"), _read_json(row, "tests")
    if not isinstance(tests, list) or not all(
        isinstance(test, dict) and test.keys() >= {"input", "output"} for test in tests
    ):
        raise UserError('column \'tests\' holds no list of tests, such as [{"input": [2], "output": 5}]')
    if entry and not all(isinstance(test["input"], list) for test in tests):
        raise UserError("column 'tests': the input of a function is a list of its arguments, such as [2]")
    cases = [
        Case(FunctionCall(entry, tuple(test["input"])), (test["output"],), True)
        if entry
        else _text_case(test["input"], test["output"])
        for test in tests
    ]
    count = min(example_count, len(cases) - 1)
    question = row.text("question").strip()
    if not question:
        raise UserError("asks nothing")
    statement = "\n".join([question, *map(describe_case, cases[:count]), *([] if entry else [STDIN_STATEMENT])])
    wrong = tuple(_read_texts(row, "wrong")) if "wrong" in row.cells else ()
    problem = Problem(
        statement,
        entry,
        tuple(cases[:count]),
        tuple(cases[count:]),
        reference=_optional_text(row, "solution"),
        wrong_programs=wrong,
    )
    return ParsedRow(_optional_text(row, "id"), problem)


FORMATS: Mapping[str, Callable[[Row, int], ParsedRow]] = {
    "apps": parse_apps,
    "codeforces": parse_codeforces,
    "humaneval": parse_humaneval,
    "livecodebench": parse_livecodebench,
    "mbpp": parse_mbpp,
    "plain": parse_plain,
}
FORMAT_COLUMNS = {
    "apps": {"question", "input_output"},
    "codeforces": {"official_tests", "description"},
    "humaneval": {"canonical_solution", "entry_point", "test"},
    "livecodebench": {"question_content", "private_test_cases"},
    "mbpp": {"test_list", "code"},
    "plain": {"question", "tests"},
}


def detect_format(row: Row) -> str:
    """Detect the layout from a row's columns.

    Raises:
        UserError: the columns match no layout.
    """
    name_found = next((name for name, columns in FORMAT_COLUMNS.items() if columns <= row.cells.keys()), "")
    if not name_found:
        wanted = "; ".join(f"{name}: {', '.join(sorted(columns))}" for name, columns in FORMAT_COLUMNS.items())
        suggestion = did_you_mean(str(next(iter(row.cells), "")), set().union(*FORMAT_COLUMNS.values()))
        raise UserError(
            f"environment: {row.location}: its columns are of no layout that is known ({wanted}){suggestion}"
        )
    return name_found


def _parse_tests(
    tests: Sequence[str], functions: Mapping[str, str], before: str
) -> tuple[tuple[Case, ...], AssertTests | None]:
    """Parse code tests; return cases if each test has the form ``assert f(2) == 5``, else assert tests.

    Cases need a single jail.

    Args:
        tests: source code of the tests.
        functions: functions by their names in the tests.
        before: code that defines every name in the tests.
    """
    cases = [parse_call_case(test.strip(), functions) for test in tests]
    if None in cases:
        try:
            ast.parse(before)
        except SyntaxError as error:
            raise UserError(f"has a solution that is no Python: {error.msg} (line {error.lineno})") from error
        return (), AssertTests(before, tuple(functions.values()), tuple(tests))
    calls = [(case, case.input) for case in cases if case is not None and isinstance(case.input, FunctionCall)]
    return tuple(replace(case, input=replace(call, entry=functions[call.entry])) for case, call in calls), None


def _call_case(entry: str, arguments: Any, expected: Any) -> Case:
    """Build a case with a call. The right result is the output, or the output's first item."""
    if not isinstance(arguments, list):
        raise UserError(f"column 'input_output': an input of {entry} is no list of arguments")
    accepted = (expected, expected[0]) if isinstance(expected, list) and expected else (expected,)
    return Case(FunctionCall(entry, tuple(arguments)), accepted, True)


def _text_case(input_text: Any, expected: Any) -> Case:
    """Build a case with input and output texts. A list is joined into lines."""
    texts = ["\n".join(map(str, text)) if isinstance(text, list) else str(text) for text in (input_text, expected)]
    return Case(StdinInput(texts[0]), (texts[1],))


def _livecodebench_case(entry: str, test: Mapping[str, Any]) -> Case:
    if not entry:
        return _text_case(test["input"], test["output"])
    arguments = tuple(json.loads(line) for line in str(test["input"]).split("\n"))
    return Case(FunctionCall(entry, arguments), (json.loads(str(test["output"])),), True)


def _input_output_case(test: Any) -> Case:
    if not isinstance(test, Mapping) or not test.keys() >= {"input", "output"}:
        raise UserError("has tests without input and output")
    return _text_case(test["input"], test["output"])


def _format_example(case: Case) -> str:
    assert isinstance(case.input, StdinInput)
    return f"Example\nInput:\n{case.input.text.rstrip()}\nOutput:\n{case.expected[0].rstrip()}"


def _read_json(row: Row, column: str) -> Any:
    cell = row.cell(column)
    if not isinstance(cell, str):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
        raise UserError(f"column {column!r} is not JSON ({error})") from error


def _read_texts(row: Row, column: str) -> list[str]:
    cell = row.cell(column)
    cell = _read_json(row, column) if isinstance(cell, str) and cell.strip() else cell or []
    if not isinstance(cell, list) or not all(isinstance(text, str) for text in cell):
        raise UserError(f"column {column!r} holds no list of texts")
    return list(cell)


def _optional_text(row: Row, column: str) -> str:
    return row.text(column) if column in row.cells else ""


def _read_list(row: Row, column: str) -> list[Any]:
    """Return a list cell; empty if missing."""
    cell = row.cells.get(column)
    if cell is None:
        return []
    if not isinstance(cell, list):
        raise UserError(f"column {column!r} holds no list of tests")
    return cell


def _read_limit(row: Row, column: str, limit: float) -> float:
    """Return a limit from 0 to ``limit``; 0 if missing."""
    value = row.cells.get(column) or 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= limit:
        raise UserError(f"column {column!r} holds {str(value)[:40]}, which is no limit from 0 to {limit:,}")
    return float(value)
