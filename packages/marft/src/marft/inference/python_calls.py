"""Calls that a model writes as Python: ``[search(query="Paris"), age(name="Ada")]``."""

from __future__ import annotations

import ast
import json
import warnings

from marft.common.errors import UserError
from marft.common.types import ToolCall
from marft.inference.call_values import build_tool_call

PYTHON_CONSTANTS = {"true": True, "false": False, "null": None}  # JSON constants inside Python calls


def parse_python_calls(source: str) -> list[ToolCall]:
    """Parse a Python list of calls with keyword arguments.

    Raises:
        ValueError, TypeError, SyntaxError, RecursionError, MemoryError: it is something else.
    """
    with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
        body = ast.parse(source, mode="eval").body
    items = body.elts if isinstance(body, ast.List) else [body]
    return [_build_python_call(item) for item in items]


def _build_python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call):
        raise UserError(f"{ast.unparse(node)} is no call")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise UserError("arguments need names")
    names = [keyword.arg for keyword in node.keywords]
    if len(set(names)) < len(names):
        raise UserError("an argument occurs twice")
    arguments = {keyword.arg: ast.literal_eval(_JsonConstants().visit(keyword.value)) for keyword in node.keywords}
    return build_tool_call(ast.unparse(node.func), json.loads(json.dumps(arguments)))


class _JsonConstants(ast.NodeTransformer):
    """Replacement of JSON's names for constants in Python code."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace a constant's name."""
        return ast.Constant(PYTHON_CONSTANTS[node.id]) if node.id in PYTHON_CONSTANTS else node
