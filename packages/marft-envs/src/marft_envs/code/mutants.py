"""Wrong programs, generated from a right program by small faults."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

MAX_MUTANTS = 12  # maximum mutants per program
REPLACEMENTS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


def make_mutants(program: str) -> list[str]:
    """Return programs with a single fault each: another operator or constant, or a negated condition.

    Some mutants may still be right.

    >>> make_mutants("def f(x):\\n    return x + 1")
    ['def f(x):\\n    return None', 'def f(x):\\n    return x - 1', 'def f(x):\\n    return x + 2']

    Raises:
        SyntaxError: the program is not Python.
    """
    tree = ast.parse(program)
    places = list(_possible_changes(tree))
    step = max(1, len(places) // MAX_MUTANTS)
    texts = [_mutate(tree, number) for number in range(0, len(places), step)]
    return [text for text in dict.fromkeys(texts) if text != ast.unparse(tree)][:MAX_MUTANTS]


def _mutate(tree: ast.Module, number: int) -> str:
    tree_copy = copy.deepcopy(tree)
    list(_possible_changes(tree_copy))[number]()
    return ast.unparse(tree_copy)


def _possible_changes(tree: ast.AST) -> Iterator[Callable[[], None]]:
    """Yield a function for each possible change; calling it applies the change."""
    for node in ast.walk(tree):
        for name in ("op",):
            if type(getattr(node, name, None)) in REPLACEMENTS:
                yield _attribute_change(node, name, REPLACEMENTS[type(getattr(node, name))]())
        if isinstance(node, ast.Compare) and type(node.ops[0]) in REPLACEMENTS:
            yield _attribute_change(node, "ops", [REPLACEMENTS[type(node.ops[0])](), *node.ops[1:]])
        if isinstance(node, ast.Constant) and type(node.value) is int:
            yield _attribute_change(node, "value", node.value + 1)
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield _attribute_change(node, "test", ast.UnaryOp(ast.Not(), node.test))
        if isinstance(node, ast.Return) and node.value is not None:
            yield _attribute_change(node, "value", ast.Constant(None))


def _attribute_change(node: ast.AST, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(node, name, value)
