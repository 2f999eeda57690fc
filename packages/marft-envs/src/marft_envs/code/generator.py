"""Generated problems: small functions on a number, text or list, with tests and wrong programs.

A function is a chain with a phrase, an expression and mistaken expressions per step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from types import CodeType
from typing import Any, Literal, NamedTuple

from marft.common.seeds import derive_seed
from marft_envs.code.execution import FunctionCall
from marft_envs.code.problems import Case, Problem, describe_case
from marft_envs.generated import GeneratedTask

Kind = Literal["number", "text", "list"]
CACHE_SIZE = 20_000  # maximum cached functions and expressions
STEP_SEPARATOR = ", then "
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


class ChainStep(NamedTuple):
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


def to_words(steps: Sequence[ChainStep]) -> str:
    """Describe a chain: ``times 2, then plus 3``."""
    return STEP_SEPARATOR.join(step.describe() for step in steps)


def to_code(steps: Sequence[ChainStep]) -> str:
    """Convert a chain to an expression in ``x``.

    >>> to_code([ChainStep("times {n}", 2), ChainStep("plus {n}", 3)])
    '(x * 2) + 3'
    """
    code = "x"
    for step in steps:
        code = step.apply_to(code)
    return code


def wrong_expressions(steps: Sequence[ChainStep]) -> list[str]:
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


def parse_steps(words: str) -> list[ChainStep] | None:
    """Parse a chain from its description; None if invalid.

    >>> parse_steps("times 2, then plus 3")
    [ChainStep(words='times {n}', number=2, letter=''), ChainStep(words='plus {n}', number=3, letter='')]
    """
    steps = []
    for part in words.split(STEP_SEPARATOR):
        for phrase in PHRASES:
            pattern = re.escape(phrase.words).replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{c\}", "(?P<c>[a-z])")
            if match := re.fullmatch(pattern, part.strip()):
                groups = match.groupdict()
                steps.append(ChainStep(phrase.words, int(groups.get("n") or 0), groups.get("c") or ""))
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


ENTRY_NAME = "f"
KIND_NAMES: dict[Kind, str] = {"number": "a number", "text": "a text", "list": "a list of numbers"}
EXAMPLE_WORDS = (
    "cat",
    "tree",
    "apple",
    "stone",
    "river",
    "toast",
    "sister",
    "orchestra",
    "rosettes",
    "a",
    "moon",
    "Tea",
)
PROBE_COUNT = 24  # inputs that distinguish functions
MAX_RESULT = 10**6  # maximum absolute value of results
# range of input numbers, and the maximum number of inputs for it; more inputs use a wider range
NUMBER_RANGE, FEW_INPUTS = (-30, 60), 64
MAX_TRIVIAL_VALUES = 3  # a function with no more distinct values than this is too simple
EXAMPLE_INPUTS: dict[Kind, tuple[object, ...]] = {
    "number": (1, 2, 3, 4, 5, 6),
    "text": ("cat", "tree", "sea", "toast"),
    "list": ([1, 2], [3, 1, 2], [4, 6, 5, 1]),
}


def generate_problem(
    random: Random, kinds: Sequence[Kind], max_steps: int, tests: int, example_count: int
) -> GeneratedTask:
    """Generate a nontrivial function: neither the identity nor nearly constant.

    Equal functions have equal contents, independent of their description.

    Args:
        random: source of randomness.
        kinds: allowed kinds of input.
        max_steps: maximum steps of the function.
        tests: minimum number of hidden tests.
        example_count: number of shown examples.
    """
    while True:
        kind = random.choice(kinds)
        steps = _draw_chain(random, kind, random.randint(1, max_steps))
        values = _probe_values(kind, to_code(steps))
        if values:
            break
    data = {
        "kind": kind,
        "steps": [list(step) for step in steps],
        "tests": tests,
        "shown": example_count,
        "fewest_steps": 1,
    }
    return GeneratedTask(f"{kind}: {values}", _format_prompt(kind, steps, example_count), data)


def build_problem(data: Any) -> Problem:
    """Build the problem from a task's data.

    Args:
        data: dictionary with ``kind``, ``steps``, the number of ``tests``, and the number of cases ``shown``.
    """
    kind: Kind = data["kind"]
    steps = [ChainStep(*step) for step in data["steps"]]
    code, words = to_code(steps), to_words(steps)
    examples = _examples(kind, code, data["shown"])
    inputs = [
        x
        for x in _draw_inputs(kind, data["tests"] + PROBE_COUNT, words)
        if x not in EXAMPLE_INPUTS[kind][: data["shown"]]
    ]
    test_inputs = _choose_test_inputs(code, inputs, wrong_expressions(steps), data["tests"])
    cases = [_make_case(code, x) for x in test_inputs]
    wrong = [
        expression
        for expression in wrong_expressions(steps)
        if any(evaluate(expression, x) != evaluate(code, x) for x in test_inputs)
    ]
    return Problem(
        _format_prompt(kind, steps, data["shown"]),
        ENTRY_NAME,
        tuple(examples),
        tuple(cases),
        reference=make_program(code),
        wrong_programs=tuple(map(make_program, wrong)),
    )


def make_program(code: str) -> str:
    """Return the source code for a function that returns an expression in ``x``."""
    return f"def {ENTRY_NAME}(x): return {code}"


def _draw_chain(random: Random, kind: Kind, length: int) -> list[ChainStep]:
    """Draw a chain of compatible steps. No phrase occurs twice in a row."""
    steps: list[ChainStep] = []
    while len(steps) < length:
        choices = [
            phrase_option
            for phrase_option in PHRASES
            if phrase_option.input_kind == kind and (not steps or phrase_option.words != steps[-1].words)
        ]
        phrase = random.choice(choices)
        number = random.randint(phrase.low, phrase.high) if "{n}" in phrase.words else 0
        steps.append(ChainStep(phrase.words, number, random.choice(LETTERS) if "{c}" in phrase.words else ""))
        kind = BY_WORDS[phrase.words].output_kind
    return steps


def _format_prompt(kind: Kind, steps: Sequence[ChainStep], example_count: int) -> str:
    examples = map(describe_case, _examples(kind, to_code(steps), example_count))
    return "\n".join([f"Write {ENTRY_NAME}(x), where x is {KIND_NAMES[kind]}: {to_words(steps)}.", *examples])


def _examples(kind: Kind, code: str, example_count: int) -> list[Case]:
    return [_make_case(code, x) for x in EXAMPLE_INPUTS[kind] if evaluate(code, x) is not None][:example_count]


@lru_cache(CACHE_SIZE)
def _probe_values(kind: Kind, code: str) -> str:
    """Return the function's values on probe inputs; "" if they are too few, too large or trivial."""
    inputs = _draw_inputs(kind, PROBE_COUNT, "probes")
    values = [evaluate(code, x) for x in inputs]
    large = any(isinstance(value, int) and abs(value) > MAX_RESULT for value in values)
    if large or None in values or len(set(map(repr, values))) <= MAX_TRIVIAL_VALUES or values == list(inputs):
        return ""
    return repr(values)


@lru_cache(CACHE_SIZE)
def _draw_inputs(kind: Kind, count: int, name: str) -> tuple[Any, ...]:
    """Return distinct inputs, equal for equal names."""
    random = Random(derive_seed(0, "code", kind, name))
    inputs: dict[str, object] = {}
    while len(inputs) < count:
        if kind == "number":
            value: object = random.randint(*(NUMBER_RANGE if count <= FEW_INPUTS else (-count, 2 * count)))
        elif kind == "text":
            value = "".join(random.choice(EXAMPLE_WORDS) for _ in range(random.randint(1, 3)))
        else:
            value = [random.randint(-9, 30) for _ in range(random.randint(0, 6))]
        inputs.setdefault(repr(value), value)
    return tuple(inputs.values())


def _choose_test_inputs(code: str, inputs: Sequence[Any], wrong: Sequence[str], count: int) -> list[Any]:
    """Choose inputs that expose wrong expressions, then further inputs up to ``count``.

    Each wrong expression gets at least one input with a different value, if any input has one.
    """
    chosen: list[object] = []
    for expression in wrong:
        exposing = [x for x in inputs if evaluate(expression, x) != evaluate(code, x)]
        if exposing and not any(x in chosen for x in exposing):
            chosen.append(exposing[0])
    return [*chosen, *(x for x in inputs if x not in chosen)][: max(count, len(chosen))]


def _make_case(code: str, x: Any) -> Case:
    return Case(FunctionCall(ENTRY_NAME, (x,)), (evaluate(code, x),))
