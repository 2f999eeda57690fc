"""Small functions as chains: a phrase, an expression and mistaken expressions per step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType
from typing import Any, Literal, NamedTuple

Kind = Literal["number", "text", "list"]
THEN = ", then "
MOST_KEPT = 20_000  # maximum cached expressions
LETTERS = "aeiostr"
ATOM = re.compile(r"[\w.]+|\w+\(.*\)|\[.*\]")


class Phrase(NamedTuple):
    """Template for a step, with placeholders.

    ``{x}`` is the operand, ``{n}`` a number from ``low`` to ``high``, ``{c}`` a letter.
    """

    words: str
    takes: Kind
    gives: Kind
    code: str
    mistaken: tuple[str, ...]
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
        "without every {c}", "text", "text", "{x}.replace('{c}', '')",
        ("{x}.replace('{c}', ' ')", "{x}.strip('{c}')"),
    ),
    Phrase("its length", "text", "number", "len({x})", ("len({x}) - 1", "len(set({x}))")),
    Phrase("how often {c} is in it", "text", "number", "{x}.count('{c}')", ("{x}.find('{c}')", "len({x})")),
    Phrase("each plus {n}", "list", "list", "[i + {n} for i in {x}]", ("[i - {n} for i in {x}]", "{x} + [{n}]")),
    Phrase("each times {n}", "list", "list", "[i * {n} for i in {x}]", ("[i + {n} for i in {x}]", "{x} * {n}"), 2),
    Phrase(
        "those over {n}", "list", "list", "[i for i in {x} if i > {n}]",
        ("[i for i in {x} if i < {n}]", "[i for i in {x} if i >= {n}]"),
    ),
    Phrase(
        "those that are even", "list", "list", "[i for i in {x} if i % 2 == 0]",
        ("[i for i in {x} if i % 2]", "{x}[::2]"),
    ),
    Phrase("sorted", "list", "list", "sorted({x})", ("sorted({x}, reverse=True)", "list({x})")),
    Phrase("in reverse", "list", "list", "{x}[::-1]", ("sorted({x})", "{x}[1:]")),
    Phrase("without the first {n}", "list", "list", "{x}[{n}:]", ("{x}[:{n}]", "{x}[:-{n}]"), 1, 3),
    Phrase("the sum", "list", "number", "sum({x})", ("len({x})", "max({x}, default=0)")),
    Phrase("how many there are", "list", "number", "len({x})", ("len({x}) - 1", "sum({x})")),
    Phrase("the largest, or 0", "list", "number", "max({x}, default=0)", ("min({x}, default=0)", "sum({x})")),
)  # fmt: skip
BY_WORDS = {phrase.words: phrase for phrase in PHRASES}
FUNCTIONS = (len, sum, max, min, sorted, list, set, abs)
ALLOWED = {"__builtins__": {function.__name__: function for function in FUNCTIONS}}


class Step(NamedTuple):
    """Phrase with its number or letter, as plain values."""

    words: str
    number: int = 0
    letter: str = ""

    def said(self) -> str:
        """Return the step's description."""
        return self.words.format(n=self.number, c=self.letter)

    def applied(self, to: str, code: str | None = None) -> str:
        """Return this step's expression, applied to the expression ``to``."""
        code = BY_WORDS[self.words].code if code is None else code
        bare = "({x}" in code or "in {x}" in code
        return code.format(x=to if bare or ATOM.fullmatch(to) else f"({to})", n=self.number, c=self.letter)


def in_words(steps: Sequence[Step]) -> str:
    """Describe a chain: ``times 2, then plus 3``."""
    return THEN.join(step.said() for step in steps)


def in_code(steps: Sequence[Step]) -> str:
    """Convert a chain to an expression in ``x``.

    >>> in_code([Step("times {n}", 2), Step("plus {n}", 3)])
    '(x * 2) + 3'
    """
    code = "x"
    for step in steps:
        code = step.applied(code)
    return code


def mistakes(steps: Sequence[Step]) -> list[str]:
    """Return expressions that get a step wrong, or skip a step."""
    found = []
    for place, step in enumerate(steps):
        for code in BY_WORDS[step.words].mistaken:
            wrong = step.applied(in_code(steps[:place]), code)
            for later in steps[place + 1 :]:
                wrong = later.applied(wrong)
            found.append(wrong)
        if len(steps) > 1 and BY_WORDS[step.words].takes == BY_WORDS[step.words].gives:
            found.append(in_code([*steps[:place], *steps[place + 1 :]]))
    return list(dict.fromkeys(found))


def steps_in(words: str) -> list[Step] | None:
    """Parse a chain from its description; None if invalid.

    >>> steps_in("times 2, then plus 3")
    [Step(words='times {n}', number=2, letter=''), Step(words='plus {n}', number=3, letter='')]
    """
    found = []
    for part in words.split(THEN):
        for phrase in PHRASES:
            pattern = re.escape(phrase.words).replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{c\}", "(?P<c>[a-z])")
            if match := re.fullmatch(pattern, part.strip()):
                told = match.groupdict()
                found.append(Step(phrase.words, int(told.get("n") or 0), told.get("c") or ""))
                break
        else:
            return None
    return found


@lru_cache(MOST_KEPT)
def _compiled(code: str) -> CodeType:
    return compile(code, "phrases", "eval")


def value_of(code: str, x: object) -> Any:
    """Evaluate a trusted expression at ``x``; None if it raises an error."""
    try:
        return eval(_compiled(code), ALLOWED, {"x": x})
    except (TypeError, ValueError, ZeroDivisionError, IndexError, OverflowError):
        return None
