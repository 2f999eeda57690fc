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
LONGEST = 500  # maximum length of an expression, in characters


def value_of(expression: str, digits: int = 2) -> str:
    """Evaluate an expression with numbers, ``+ - * /`` and brackets; round to ``digits`` decimals.

    >>> value_of("2 * (3.5 - 1)")
    '5.0'

    Raises:
        Error: the text is not a valid expression, has more than 500 characters, or divides by 0.
    """
    try:
        if len(expression) > LONGEST:
            raise SyntaxError
        return str(round(_value(ast.parse(expression.strip(), mode="eval").body), digits))
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError) as error:
        raise Error("invalid expression") from error


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return -_value(node.operand) if isinstance(node.op, ast.USub) else _value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise SyntaxError
