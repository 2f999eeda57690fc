"""Evaluation of model-written arithmetic, without running code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

from marft_envs.tool_use.toolbox import Error

OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
MAX_LENGTH = 500  # maximum length of an expression, in characters


def evaluate(expression: str, digits: int = 2) -> str:
    """Evaluate an expression with numbers, ``+ - * /`` and brackets; round to ``digits`` decimals.

    >>> evaluate("2 * (3.5 - 1)")
    '5.0'

    Raises:
        Error: the text is not a valid expression, has more than 500 characters, or divides by 0.
    """
    try:
        if len(expression) > MAX_LENGTH:
            raise SyntaxError
        return str(round(_evaluate_node(ast.parse(expression.strip(), mode="eval").body), digits))
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError) as error:
        raise Error("invalid expression") from error


def _evaluate_node(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return -_evaluate_node(node.operand) if isinstance(node.op, ast.USub) else _evaluate_node(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_evaluate_node(node.left), _evaluate_node(node.right))
    raise SyntaxError
