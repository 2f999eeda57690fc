"""What scorers of Reasoning Gym evaluate of an answer: values that are written out, and arithmetic. Nothing of it runs.

Some of the package's scorers give an answer to ``eval``, or to sympy's ``parse_expr``, which is ``eval`` too: whatever
a model writes would run in this process, or never end. What they are given here in their place reads the same answers.
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

LONGEST = 2000  # characters of an expression
LARGEST = 2000  # bits of a number that comes up, about, or degree of a polynomial
SMALL = 8  # the same, of exponents, and of what is in a function in a function
PACKAGE = "reasoning_gym"
WITH_LITERALS = (
    "algorithmic.binary_matrix", "algorithmic.number_sorting", "algorithmic.spiral_matrix",
    "algorithmic.string_insertion", "games.n_queens",
)  # fmt: skip
WITH_ARITHMETIC = {  # what each calls the function, or the module that has it
    "algebra.intermediate_integration": "sympy", "algebra.polynomial_multiplication": "sp",
    "algebra.simple_integration": "sympy", "games.countdown": "parse_expr", "games.puzzle24": "parse_expr",
}  # fmt: skip
WITH_FRACTIONS = ("probability.coin_flip",)
WITH_TRUTH = {"algorithmic.game_of_life_halting": "GameOfLifeHaltingDataset"}  # to whom any word is true
FUNCTIONS = frozenset({  # Integral is none: who says a task again has not solved it
    "Abs", "abs", "acos", "acosh", "acot", "asin", "asinh", "atan", "atanh", "cos", "cosh", "cot", "csc", "exp", "ln",
    "log", "sec", "sin", "sinh", "sqrt", "tan", "tanh",
})  # fmt: skip
FAR = re.compile(r"[0-9.][eE][-+]?[0-9_]{4,}")  # an exponent of ten that sympy would write out
POINTS = (0.3719, 1.2847, -0.6173, 2.0391)  # where an expression is tried
DIGITS = 25
CLOSE = 1e-9
CALLABLE = frozenset("NOQS")  # letters that sympy has functions under
OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitXor)


@cache
def tame() -> None:
    """Have the package's scorers evaluate nothing else, in this process."""
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
    """The value that is written out.

    >>> literal("[[1, 2], ['a']]")
    [[1, 2], ['a']]

    Raises:
        ValueError: it is none.
    """
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("no value that is written out") from error


def arithmetic(parse: Callable[..., Any]) -> Callable[..., Any]:
    """A ``parse_expr`` that reads arithmetic alone."""

    def parsed(text: str, local_dict: Mapping[str, Any] | None = None) -> Any:
        check(text)
        return parse(text, local_dict=local_dict)

    return parsed


def fraction(text: str) -> Fraction:
    """A number as text, exactly.

    Raises:
        ValueError: it is none, or too large to be written out.
    """
    power = text.lower().partition("e")[2].replace("_", "").strip()
    if len(text) > LONGEST or (power.lstrip("+-").isdecimal() and abs(int(power)) > LARGEST):
        raise ValueError("a number too large to be written out")
    found = Fraction(text)
    if abs(found) > sys.float_info.max:
        raise ValueError("a number too large to be written out")
    return found


def _same_word(_: object, answer: str | None, entry: Mapping[str, Any]) -> float:
    """1 for the word that is right, whatever its case."""
    return float(answer is not None and answer.strip().casefold() == str(entry["answer"]).casefold())


class _Sympy:
    """Stands for the module in one that parses with it."""

    def __init__(self, module: Any) -> None:
        self._module, self.parse_expr = module, arithmetic(module.parse_expr)

    def simplify(self, expression: Any) -> Any:
        """0 for what is 0 everywhere: all that scorers ask it for, and its search for a form may not end."""
        return 0 if vanishes(expression) else expression

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def vanishes(expression: Any) -> bool:
    """Whether an expression of sympy's is 0 wherever it is tried, to nine of its terms' digits.

    Args:
        expression: in which functions are those that answers may have, and their derivatives.
    """
    symbols, terms = sorted(expression.free_symbols, key=str), expression.args if expression.is_Add else (expression,)
    for shift in range(len(POINTS)):
        at = {symbol: POINTS[(number + shift) % len(POINTS)] for number, symbol in enumerate(symbols)}
        try:
            values = [complex(term.evalf(DIGITS, subs=at)) for term in terms]
            rest, size = abs(sum(values)), sum(map(abs, values))
        except (TypeError, ValueError, ArithmeticError, NotImplementedError):  # it has no value there
            return False
        if not (math.isfinite(size) and rest <= CLOSE * size):
            return False
    return True


def check(text: str) -> None:
    """See that a text is arithmetic, in letters and numbers, that is worked out in little time.

    >>> check("3*x**2/2 - sin(2*x) + C")

    Raises:
        ValueError: it is something else.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body if len(text) <= LONGEST else None
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("no arithmetic") from error
    if tree is None or FAR.search(text) or _size(tree) > LARGEST:
        raise ValueError("more than is worked out")


def _size(node: ast.AST, inside: int = 0) -> int:
    """Bits that its value has, at most about, or its degree.

    Args:
        inside: of how many functions.

    Raises:
        ValueError: it is no arithmetic, or nests too much.
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
    """The size of an exponent.

    Raises:
        ValueError: it is large, or has powers or functions of its own.
    """
    if size > SMALL or any(isinstance(one, ast.Pow | ast.Call) for one in ast.walk(node)):
        raise ValueError("an exponent that is not small")
    return size
