"""Safe replacements for expression evaluation in Reasoning Gym's scorers: literals and arithmetic only.

Some scorers of the package pass an answer to ``eval``, or to sympy's ``parse_expr``, which calls ``eval``. Any code
from a model would run in this process, or never end. These replacements accept the same answers without running
code.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from marft.common.errors import UserError

MAX_LENGTH = 2000  # maximum characters of an expression
MAX_BITS = 2000  # approximate maximum bits of an intermediate number, or degree of a polynomial
MAX_EXPONENT = 8  # the same limit for exponents, and for arguments of nested functions
PACKAGE = "reasoning_gym"
LITERAL_SCORERS = (
    "algorithmic.binary_matrix",
    "algorithmic.number_sorting",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
EXPRESSION_SCORERS = {  # module → its name for the function, or for the module with the function
    "algebra.intermediate_integration": "sympy",
    "algebra.polynomial_multiplication": "sp",
    "algebra.simple_integration": "sympy",
    "games.countdown": "parse_expr",
    "games.puzzle24": "parse_expr",
}
FRACTION_SCORERS = ("probability.coin_flip",)
# scorers that accept any nonempty word as correct
WORD_SCORERS = {"algorithmic.game_of_life_halting": "GameOfLifeHaltingDataset"}
ALLOWED_FUNCTIONS = frozenset({  # without Integral: repeating the task is not a solution
    "Abs", "abs", "acos", "acosh", "acot", "asin", "asinh", "atan", "atanh", "cos", "cosh", "cot", "csc", "exp", "ln",
    "log", "sec", "sin", "sinh", "sqrt", "tan", "tanh",
})  # fmt: skip
LARGE_POWER = re.compile(r"[0-9.][eE][-+]?[0-9_]{4,}")  # a power of ten that sympy would write out in full
SAMPLE_POINTS = (0.3719, 1.2847, -0.6173, 2.0391)  # sample points for variables
PRECISION = 25
TOLERANCE = 1e-9
SYMPY_FUNCTIONS = frozenset("NOQS")  # letters that sympy defines as functions
ALLOWED_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitXor)


@cache
def patch_scorers() -> None:
    """Replace the evaluation functions in the package's scorers, once per process."""
    for name in LITERAL_SCORERS:
        vars(import_module(f"{PACKAGE}.{name}"))["eval"] = eval_literal
    for name, attribute in EXPRESSION_SCORERS.items():
        module = vars(import_module(f"{PACKAGE}.{name}"))
        original = module[attribute]
        module[attribute] = restrict_parser(original) if attribute == "parse_expr" else _SafeSympy(original)
    for name in FRACTION_SCORERS:
        vars(import_module(f"{PACKAGE}.{name}"))["Fraction"] = parse_fraction
    for name, dataset in WORD_SCORERS.items():
        getattr(import_module(f"{PACKAGE}.{name}"), dataset).score_answer = _score_word


def eval_literal(text: str) -> object:
    """Return the value of a Python literal.

    >>> eval_literal("[[1, 2], ['a']]")
    [[1, 2], ['a']]

    Raises:
        UserError: the text is not a literal.
    """
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise UserError("no value that is written out") from error


def restrict_parser(parse: Callable[..., object]) -> Callable[..., object]:
    """Return a ``parse_expr`` that accepts arithmetic only."""

    def parse_checked(text: str, local_dict: Mapping[str, object] | None = None) -> object:
        """Check the text, then parse it."""
        check_expression(text)
        return parse(text, local_dict=local_dict)

    return parse_checked


def parse_fraction(text: str) -> Fraction:
    """Return the exact fraction for a number as text.

    Raises:
        UserError: the text is not a number, or the number is too large.
    """
    power = text.lower().partition("e")[2].replace("_", "").strip()
    if len(text) > MAX_LENGTH or (power.lstrip("+-").isdecimal() and abs(int(power)) > MAX_BITS):
        raise UserError("a number too large to be written out")
    value = Fraction(text)
    if abs(value) > sys.float_info.max:
        raise UserError("a number too large to be written out")
    return value


def _score_word(_: object, answer: str | None, entry: Mapping[str, object]) -> float:
    """Return 1 for the correct word, ignoring case, else 0."""
    return float(answer is not None and answer.strip().casefold() == str(entry["answer"]).casefold())


class _SafeSympy:
    """Proxy for the sympy module with a safe ``parse_expr`` and ``simplify``."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self.parse_expr = module, restrict_parser(module.parse_expr)

    def simplify(self, expression: object) -> object:
        """Return 0 for an expression that equals 0 everywhere, else the expression.

        Scorers need only this from ``simplify``, whose search for a simpler form may not end.
        """
        return 0 if is_zero(expression) else expression

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)


def is_zero(expression: Any) -> bool:
    """Return true if a sympy expression is 0 at all sample points, relative to its terms' size (1e-9).

    Args:
        expression: contains only functions allowed in answers, and their derivatives.
    """
    symbols, terms = sorted(expression.free_symbols, key=str), expression.args if expression.is_Add else (expression,)
    for shift in range(len(SAMPLE_POINTS)):
        substitutions = {
            symbol: SAMPLE_POINTS[(number + shift) % len(SAMPLE_POINTS)] for number, symbol in enumerate(symbols)
        }
        try:
            values = [complex(term.evalf(PRECISION, subs=substitutions)) for term in terms]
            residual, magnitude = abs(sum(values)), sum(map(abs, values))
        except (TypeError, ValueError, ArithmeticError, NotImplementedError):  # no value at this point
            return False
        if not (math.isfinite(magnitude) and residual <= TOLERANCE * magnitude):
            return False
    return True


def check_expression(text: str) -> None:
    """Check a text: arithmetic over letters and numbers with bounded cost.

    >>> check_expression("3*x**2/2 - sin(2*x) + C")

    Raises:
        UserError: the text is anything else.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body if len(text) <= MAX_LENGTH else None
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise UserError("no arithmetic") from error
    if tree is None or LARGE_POWER.search(text) or _estimate_size(tree) > MAX_BITS:
        raise UserError("more than is worked out")


def _estimate_size(node: ast.AST, call_depth: int = 0) -> int:
    """Return the approximate maximum bits of a node's value, or its degree.

    Args:
        call_depth: number of enclosing function calls.

    Raises:
        UserError: the node is not arithmetic, or nests too deeply.
    """
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return max(1, node.value.bit_length()) if isinstance(node.value, int) else 1
    if isinstance(node, ast.Name) and (node.id in ("pi",) or (len(node.id) == 1 and node.id not in SYMPY_FUNCTIONS)):
        return 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return _estimate_size(node.operand, call_depth)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ALLOWED_OPERATORS):
        left_size, right_size = _estimate_size(node.left, call_depth), _estimate_size(node.right, call_depth)
        if isinstance(node.op, ast.Pow):
            return left_size << _check_exponent(node.right, right_size)
        return max(left_size, right_size) + 1 if isinstance(node.op, ast.Add | ast.Sub) else left_size + right_size
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ALLOWED_FUNCTIONS:
        sizes = [_estimate_size(argument, call_depth + 1) for argument in node.args]
        if not node.keywords and sizes and call_depth <= 1 and (not call_depth or max(sizes) <= MAX_EXPONENT):
            return max(sizes)
    raise UserError("no arithmetic")


def _check_exponent(node: ast.AST, size: int) -> int:
    """Return an exponent's size.

    Raises:
        UserError: the exponent is large, or contains powers or functions.
    """
    if size > MAX_EXPONENT or any(isinstance(child, ast.Pow | ast.Call) for child in ast.walk(node)):
        raise UserError("an exponent that is not small")
    return size
