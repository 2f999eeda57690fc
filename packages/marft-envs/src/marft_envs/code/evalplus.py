"""EvalPlus tests, parsed into values. Nothing is executed.

The tests are code in a fixed form: inputs, results, and a loop that compares them. Liu et al. 2023 (arXiv:2305.01210);
``tools/humaneval/to_original_fmt.py`` and ``tools/mbpp/to_original_fmt.py`` write them.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from typing import Any

from marft_envs.code.execution import FunctionCall
from marft_envs.code.plain_values import encode
from marft_envs.code.problems import Case

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
        ValueError: the code is from EvalPlus, but compares neither value by value nor as sets.
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
        raise ValueError("has tests of EvalPlus that are more than inputs, results and whether they are equal")
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
