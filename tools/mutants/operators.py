"""What is changed: every small fault that a node of a syntax tree could have in its place.

Each operator takes a node and gives the nodes that may stand there instead. None of them knows where the node is;
:mod:`mutation` does, and leaves out what cannot change behaviour.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
OPPOSITES = {
    "min": "max", "minimum": "maximum", "amin": "amax", "argmin": "argmax", "clamp_min": "clamp_max",
    "clamp_min_": "clamp_max_", "any": "all", "sum": "mean", "exp": "expm1", "log": "log1p",
}  # fmt: skip
OPPOSITES |= {b: a for a, b in OPPOSITES.items()}
BYPASSED = {  # methods without which a value is of the same kind
    "abs", "clamp", "clamp_max", "clamp_min", "clamp_max_", "clamp_min_", "clip", "copy", "clone", "cumsum",
    "detach", "exp", "expm1", "log", "square", "strip", "model_copy",
}  # fmt: skip
BYPASSED_CALLS = {"sorted", "reversed", "abs"}
STREAMS = {"generator", "derive_seed"}  # each argument is a part of a random stream's name
IGNORED_KEYWORDS = {"strict", "description"}  # an assertion of zip; documentation of a setting
ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
PLAIN = (ast.Name, ast.Attribute, ast.Subscript)
MODULES = {"np", "torch", "math"}
TINY = 1e-4  # numbers below are tolerances, of which twice as much is the same


def replacements(node: ast.AST) -> Iterator[ast.AST | None]:
    """Nodes that may stand for ``node``; None removes a statement."""
    operators: dict[type[ast.AST], Any] = {
        ast.Compare: _comparison, ast.BinOp: _arithmetic, ast.AugAssign: _augmented, ast.UnaryOp: _unary,
        ast.Constant: _constant, ast.BoolOp: _boolean, ast.If: _condition, ast.While: _condition,
        ast.IfExp: _condition, ast.comprehension: _filter, ast.Call: _call, ast.Slice: _slice,
        ast.Assign: _assignment, ast.Expr: _statement, ast.Return: _return, ast.Break: _jump, ast.Continue: _jump,
        ast.Raise: _removed, ast.For: _loop,
    }  # fmt: skip
    operator = operators.get(type(node))
    if operator:
        yield from operator(node)


def _with(node: Any, **fields: Any) -> Any:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _not(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _comparison(node: ast.Compare) -> Iterator[ast.AST]:
    for place, op in enumerate(node.ops):
        yield _with(node, ops=[*node.ops[:place], COMPARISONS[type(op)](), *node.ops[place + 1 :]])


def _arithmetic(node: ast.BinOp) -> Iterator[ast.AST]:
    """The opposite operator, and each operand alone: what it was joined with is ignored."""
    if type(node.op) in ARITHMETIC:
        yield _with(node, op=ARITHMETIC[type(node.op)]())
        yield node.left
        yield ast.UnaryOp(ast.USub(), node.right) if isinstance(node.op, ast.Sub) else node.right


def _augmented(node: ast.AugAssign) -> Iterator[ast.AST | None]:
    yield None
    if type(node.op) in ARITHMETIC:
        yield _with(node, op=ARITHMETIC[type(node.op)]())


def _unary(node: ast.UnaryOp) -> Iterator[ast.AST]:
    if not isinstance(node.op, ast.UAdd):
        yield node.operand


def _constant(node: ast.Constant) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield from (ast.Constant(other) for other in ((value + 1,) if value == 0 else (value + 1, value - 1)))
    elif isinstance(value, float) and 0.0 < value < TINY:
        yield ast.Constant(1e5 * value)
    elif isinstance(value, float):
        yield from (ast.Constant(other) for other in ((1.0,) if value == 0 else (2.0 * value, 0.0)))


def _boolean(node: ast.BoolOp) -> Iterator[ast.AST]:
    """The other junction, and the condition without each of its parts."""
    yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    for place in range(len(node.values)):
        left = [*node.values[:place], *node.values[place + 1 :]]
        yield left[0] if len(left) == 1 else _with(node, values=left)


def _condition(node: Any) -> Iterator[ast.AST]:
    comparison = isinstance(node.test, ast.Compare) and not isinstance(node.test.ops[0], ORDERINGS)
    negated_anyway = comparison or isinstance(node.test, ast.UnaryOp)
    if not negated_anyway:
        yield _with(node, test=_not(node.test))


def _filter(node: ast.comprehension) -> Iterator[ast.AST]:
    for place, test in enumerate(node.ifs):
        yield _with(node, ifs=[*node.ifs[:place], *node.ifs[place + 1 :]])
        yield _with(node, ifs=[*node.ifs[:place], _not(test), *node.ifs[place + 1 :]])


def _call(node: ast.Call) -> Iterator[ast.AST]:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    for place, keyword in enumerate(node.keywords):
        if keyword.arg not in IGNORED_KEYWORDS:
            yield _with(node, keywords=[*node.keywords[:place], *node.keywords[place + 1 :]])
    if name in OPPOSITES:
        field = "attr" if isinstance(function, ast.Attribute) else "id"
        if field == "attr" or name in ("min", "max", "any", "all"):
            yield _with(node, func=_with(function, **{field: OPPOSITES[name]}))
    if isinstance(function, ast.Attribute) and name in BYPASSED:
        if not _of_a_module(function):
            yield function.value
        elif node.args:
            yield node.args[0]
    if isinstance(function, ast.Name) and name in BYPASSED_CALLS:
        yield node.args[0] if name == "abs" else ast.Call(ast.Name("list", ast.Load()), node.args[:1], [])
    if name in STREAMS:
        for place in range(1, len(node.args)):
            yield _with(node, args=[*node.args[:place], *node.args[place + 1 :]])
    for place, (a, b) in enumerate(zip(node.args, node.args[1:], strict=False)):
        swappable = isinstance(a, PLAIN) and isinstance(b, PLAIN) and not _of_a_module(a) and not _of_a_module(b)
        if swappable and name not in STREAMS and ast.dump(a) != ast.dump(b):
            yield _with(node, args=[*node.args[:place], b, a, *node.args[place + 2 :]])


def _of_a_module(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in MODULES


def _slice(node: ast.Slice) -> Iterator[ast.AST]:
    """Off by one, where the number itself is not changed anyway."""
    if node.lower is not None and not _number(node.lower):
        yield _with(node, lower=ast.BinOp(node.lower, ast.Add(), ast.Constant(1)))
    if node.upper is not None and not _number(node.upper):
        yield _with(node, upper=ast.BinOp(node.upper, ast.Sub(), ast.Constant(1)))


def _number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant))


def _assignment(node: ast.Assign) -> Iterator[ast.AST | None]:
    if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets):
        yield None


def _statement(node: ast.Expr) -> Iterator[ast.AST | None]:
    if isinstance(node.value, (ast.Call, ast.Await, ast.Yield, ast.YieldFrom)):
        yield None


def _return(node: ast.Return) -> Iterator[ast.AST | None]:
    if node.value is None:
        yield None
    elif not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield _with(node, value=ast.Constant(None))


def _jump(node: ast.stmt) -> Iterator[ast.AST | None]:
    yield ast.Continue() if isinstance(node, ast.Break) else ast.Break()


def _removed(_: ast.stmt) -> Iterator[ast.AST | None]:
    yield None


def _loop(node: ast.For) -> Iterator[ast.AST]:
    """A loop over ``range(n)`` that runs once, whatever n is."""
    over = node.iter
    if isinstance(over, ast.Call) and getattr(over.func, "id", "") == "range" and len(over.args) == 1:
        yield _with(node, iter=_with(over, args=[ast.Constant(1)]))
