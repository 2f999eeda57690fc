"""Small functions as chains: a phrase, an expression and mistaken expressions per step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, Literal, NamedTuple

Kind = Literal["number", "text", "list"]
STEP_SEPARATOR = ", then "
CACHE_SIZE = 20_000  # maximum cached expressions
LETTERS = "aeiostr"
ATOM = re.compile(r"[\w.]+|\w+\(.*\)|\[.*\]")


class Phrase(NamedTuple):
    """Template for a step, with placeholders.

    ``{x}`` is the operand, ``{n}`` a number from ``low`` to ``high``, ``{c}`` a letter.
    """

    words: str
    input_kind: Kind
    output_kind: Kind
    code: str
    wrong_codes: tuple[str, ...]
    low: int = 1
    high: int = 9


PHRASES = (
    Phrase("plus {n}", "number", "number", "{x} + {n}", ("{x} - {n}", "{x} * {n}")),
    Phrase("minus {n}", "number", "number", "{x} - {n}", ("{x} + {n}", "{n} - {x}")),
    Phrase("times {n}", "number", "number", "{x} * {n}", ("{x} + {n}", "{x} ** {n}"), 2),
    Phrase("modulo {n}", "number", "number", "{x} % {n}", ("{x} // {n}", "{x} - {n}"), 2),
    Phrase("at most {n}", "number", "number", "min({x}, {n})", ("max({x}, {n})", "{x} - {n}")),
    Phrase("at least {n}", "number", "number", "max({x}, {n})", ("min({x}, {n})", "{x} + {n}")),
    Phrase("squared", "number", "number", "{x} ** 2", ("{x} * 2", "{x} + 2")),
    Phrase("negated", "number", "number", "-{x}", ("{x} - 1", "abs({x})")),
    Phrase("in capitals", "text", "text", "{x}.upper()", ("{x}.lower()", "{x}.capitalize()")),
    Phrase("backwards", "text", "text", "{x}[::-1]", ("{x}[::2]", "{x}[1:]")),
    Phrase("{n} times over", "text", "text", "{x} * {n}", ("{x} + '{n}'", "{x}[{n}:]"), 2, 4),
    Phrase("without the first {n} letters", "text", "text", "{x}[{n}:]", ("{x}[:{n}]", "{x}[:-{n}]"), 1, 4),
    Phrase("only the first {n} letters", "text", "text", "{x}[:{n}]", ("{x}[{n}:]", "{x}[-{n}:]"), 1, 4),
    Phrase(
        "without every {c}",
        "text",
        "text",
        "{x}.replace('{c}', '')",
        ("{x}.replace('{c}', ' ')", "{x}.strip('{c}')"),
    ),
    Phrase("its length", "text", "number", "len({x})", ("len({x}) - 1", "len(set({x}))")),
    Phrase("how often {c} is in it", "text", "number", "{x}.count('{c}')", ("{x}.find('{c}')", "len({x})")),
    Phrase("each plus {n}", "list", "list", "[i + {n} for i in {x}]", ("[i - {n} for i in {x}]", "{x} + [{n}]")),
    Phrase("each times {n}", "list", "list", "[i * {n} for i in {x}]", ("[i + {n} for i in {x}]", "{x} * {n}"), 2),
    Phrase(
        "those over {n}",
        "list",
        "list",
        "[i for i in {x} if i > {n}]",
        ("[i for i in {x} if i < {n}]", "[i for i in {x} if i >= {n}]"),
    ),
    Phrase(
        "those that are even",
        "list",
        "list",
        "[i for i in {x} if i % 2 == 0]",
        ("[i for i in {x} if i % 2]", "{x}[::2]"),
    ),
    Phrase("sorted", "list", "list", "sorted({x})", ("sorted({x}, reverse=True)", "list({x})")),
    Phrase("in reverse", "list", "list", "{x}[::-1]", ("sorted({x})", "{x}[1:]")),
    Phrase("without the first {n}", "list", "list", "{x}[{n}:]", ("{x}[:{n}]", "{x}[:-{n}]"), 1, 3),
    Phrase("the sum", "list", "number", "sum({x})", ("len({x})", "max({x}, default=0)")),
    Phrase("how many there are", "list", "number", "len({x})", ("len({x}) - 1", "sum({x})")),
    Phrase("the largest, or 0", "list", "number", "max({x}, default=0)", ("min({x}, default=0)", "sum({x})")),
)
BY_WORDS = {phrase.words: phrase for phrase in PHRASES}
ALLOWED_FUNCTIONS = (len, sum, max, min, sorted, list, set, abs)
ALLOWED_GLOBALS = {"__builtins__": {function.__name__: function for function in ALLOWED_FUNCTIONS}}


class Step(NamedTuple):
    """Phrase with its number or letter, as plain values."""

    words: str
    number: int = 0
    letter: str = ""

    def describe(self) -> str:
        """Return the step's description."""
        return self.words.format(n=self.number, c=self.letter)

    def apply_to(self, operand: str, code: str | None = None) -> str:
        """Return this step's expression, applied to the expression ``operand``."""
        code = BY_WORDS[self.words].code if code is None else code
        bare = "({x}" in code or "in {x}" in code
        return code.format(
            x=operand if bare or ATOM.fullmatch(operand) else f"({operand})", n=self.number, c=self.letter
        )


def to_words(steps: Sequence[Step]) -> str:
    """Describe a chain: ``times 2, then plus 3``."""
    return STEP_SEPARATOR.join(step.describe() for step in steps)


def to_code(steps: Sequence[Step]) -> str:
    """Convert a chain to an expression in ``x``.

    >>> to_code([Step("times {n}", 2), Step("plus {n}", 3)])
    '(x * 2) + 3'
    """
    code = "x"
    for step in steps:
        code = step.apply_to(code)
    return code


def wrong_expressions(steps: Sequence[Step]) -> list[str]:
    """Return expressions that get a step wrong, or skip a step."""
    expressions = []
    for place, step in enumerate(steps):
        for code in BY_WORDS[step.words].wrong_codes:
            wrong = step.apply_to(to_code(steps[:place]), code)
            for later in steps[place + 1 :]:
                wrong = later.apply_to(wrong)
            expressions.append(wrong)
        if len(steps) > 1 and BY_WORDS[step.words].input_kind == BY_WORDS[step.words].output_kind:
            expressions.append(to_code([*steps[:place], *steps[place + 1 :]]))
    return list(dict.fromkeys(expressions))


def parse_steps(words: str) -> list[Step] | None:
    """Parse a chain from its description; None if invalid.

    >>> parse_steps("times 2, then plus 3")
    [Step(words='times {n}', number=2, letter=''), Step(words='plus {n}', number=3, letter='')]
    """
    steps = []
    for part in words.split(STEP_SEPARATOR):
        for phrase in PHRASES:
            pattern = re.escape(phrase.words).replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{c\}", "(?P<c>[a-z])")
            if match := re.fullmatch(pattern, part.strip()):
                groups = match.groupdict()
                steps.append(Step(phrase.words, int(groups.get("n") or 0), groups.get("c") or ""))
                break
        else:
            return None
    return steps


@lru_cache(CACHE_SIZE)
def _compile(code: str) -> CodeType:
    return compile(code, "phrases", "eval")


def evaluate(code: str, x: object) -> Any:
    """Evaluate a trusted expression at ``x``; None if it raises an error."""
    try:
        return eval(_compile(code), ALLOWED_GLOBALS, {"x": x})
    except (TypeError, ValueError, ZeroDivisionError, IndexError, OverflowError):
        return None
