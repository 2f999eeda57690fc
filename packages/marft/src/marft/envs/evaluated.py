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
from typing import Any

LONGEST = 2000  # maximum characters of an expression
LARGEST = 2000  # approximate maximum bits of an intermediate number, or degree of a polynomial
SMALL = 8  # the same limit for exponents, and for arguments of nested functions
PACKAGE = "reasoning_gym"
WITH_LITERALS = (
    "algorithmic.binary_matrix", "algorithmic.number_sorting", "algorithmic.spiral_matrix",
    "algorithmic.string_insertion", "games.n_queens",
)  # fmt: skip
WITH_ARITHMETIC = {  # module → its name for the function, or for the module with the function
    "algebra.intermediate_integration": "sympy", "algebra.polynomial_multiplication": "sp",
    "algebra.simple_integration": "sympy", "games.countdown": "parse_expr", "games.puzzle24": "parse_expr",
}  # fmt: skip
WITH_FRACTIONS = ("probability.coin_flip",)
# scorers that accept any nonempty word as correct
WITH_TRUTH = {"algorithmic.game_of_life_halting": "GameOfLifeHaltingDataset"}
FUNCTIONS = frozenset({  # without Integral: repeating the task is not a solution
    "Abs", "abs", "acos", "acosh", "acot", "asin", "asinh", "atan", "atanh", "cos", "cosh", "cot", "csc", "exp", "ln",
    "log", "sec", "sin", "sinh", "sqrt", "tan", "tanh",
})  # fmt: skip
FAR = re.compile(r"[0-9.][eE][-+]?[0-9_]{4,}")  # a power of ten that sympy would write out in full
POINTS = (0.3719, 1.2847, -0.6173, 2.0391)  # sample points for variables
DIGITS = 25
CLOSE = 1e-9
CALLABLE = frozenset("NOQS")  # letters that sympy defines as functions
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitXor)


@cache
def tame() -> None:
    """Replace the evaluation functions in the package's scorers, once per process."""
    for name in WITH_LITERALS:
        vars(import_module(f"{PACKAGE}.{name}"))["eval"] = literal
    for name, called in WITH_ARITHMETIC.items():
        module = vars(import_module(f"{PACKAGE}.{name}"))
        there = module[called]
        module[called] = arithmetic(there) if called == "parse_expr" else _Sympy(there)
    for name in WITH_FRACTIONS:
        vars(import_module(f"{PACKAGE}.{name}"))["Fraction"] = fraction
    for name, dataset in WITH_TRUTH.items():
        getattr(import_module(f"{PACKAGE}.{name}"), dataset).score_answer = _same_word


def literal(text: str) -> Any:
    """Return the value of a Python literal.

    >>> literal("[[1, 2], ['a']]")
    [[1, 2], ['a']]

    Raises:
        ValueError: the text is not a literal.
    """
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("no value that is written out") from error


def arithmetic(parse: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``parse_expr`` that accepts arithmetic only."""

    def parsed(text: str, local_dict: Mapping[str, Any] | None = None) -> Any:
        """Check the text, then parse it."""
        check(text)
        return parse(text, local_dict=local_dict)

    return parsed


def fraction(text: str) -> Fraction:
    """Return the exact fraction for a number as text.

    Raises:
        ValueError: the text is not a number, or the number is too large.
    """
    power = text.lower().partition("e")[2].replace("_", "").strip()
    if len(text) > LONGEST or (power.lstrip("+-").isdecimal() and abs(int(power)) > LARGEST):
        raise ValueError("a number too large to be written out")
    found = Fraction(text)
    if abs(found) > sys.float_info.max:
        raise ValueError("a number too large to be written out")
    return found


def _same_word(_: object, answer: str | None, entry: Mapping[str, Any]) -> float:
    """Return 1 for the correct word, ignoring case, else 0."""
    return float(answer is not None and answer.strip().casefold() == str(entry["answer"]).casefold())


class _Sympy:
    """Proxy for the sympy module with a safe ``parse_expr`` and ``simplify``."""

    def __init__(self, module: Any) -> None:
        self._module, self.parse_expr = module, arithmetic(module.parse_expr)

    def simplify(self, expression: Any) -> Any:
        """Return 0 for an expression that equals 0 everywhere, else the expression.

        Scorers need only this from ``simplify``, whose search for a simpler form may not end.
        """
        return 0 if vanishes(expression) else expression

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def vanishes(expression: Any) -> bool:
    """Return true if a sympy expression is 0 at all sample points, relative to its terms' size (1e-9).

    Args:
        expression: contains only functions allowed in answers, and their derivatives.
    """
    symbols, terms = sorted(expression.free_symbols, key=str), expression.args if expression.is_Add else (expression,)
    for shift in range(len(POINTS)):
        at = {symbol: POINTS[(number + shift) % len(POINTS)] for number, symbol in enumerate(symbols)}
        try:
            values = [complex(term.evalf(DIGITS, subs=at)) for term in terms]
            rest, size = abs(sum(values)), sum(map(abs, values))
        except (TypeError, ValueError, ArithmeticError, NotImplementedError):  # no value at this point
            return False
        if not (math.isfinite(size) and rest <= CLOSE * size):
            return False
    return True


def check(text: str) -> None:
    """Check a text: arithmetic over letters and numbers with bounded cost.

    >>> check("3*x**2/2 - sin(2*x) + C")

    Raises:
        ValueError: the text is anything else.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body if len(text) <= LONGEST else None
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("no arithmetic") from error
    if tree is None or FAR.search(text) or _size(tree) > LARGEST:
        raise ValueError("more than is worked out")


def _size(node: ast.AST, inside: int = 0) -> int:
    """Return the approximate maximum bits of a node's value, or its degree.

    Args:
        inside: number of enclosing function calls.

    Raises:
        ValueError: the node is not arithmetic, or nests too deeply.
    """
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return max(1, node.value.bit_length()) if isinstance(node.value, int) else 1
    if isinstance(node, ast.Name) and (node.id in ("pi",) or (len(node.id) == 1 and node.id not in CALLABLE)):
        return 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return _size(node.operand, inside)
    if isinstance(node, ast.BinOp) and isinstance(node.op, OPERATORS):
        one, other = _size(node.left, inside), _size(node.right, inside)
        if isinstance(node.op, ast.Pow):
            return one << _exponent(node.right, other)
        return max(one, other) + 1 if isinstance(node.op, ast.Add | ast.Sub) else one + other
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        sizes = [_size(argument, inside + 1) for argument in node.args]
        if not node.keywords and sizes and inside <= 1 and (not inside or max(sizes) <= SMALL):
            return max(sizes)
    raise ValueError("no arithmetic")


def _exponent(node: ast.AST, size: int) -> int:
    """Return an exponent's size.

    Raises:
        ValueError: the exponent is large, or contains powers or functions.
    """
    if size > SMALL or any(isinstance(one, ast.Pow | ast.Call) for one in ast.walk(node)):
        raise ValueError("an exponent that is not small")
    return size
