"""Generated problems: small functions on a number, text or list, with tests and wrong programs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any

from marft.common.seeds import derive_seed
from marft_envs.code.execution import FunctionCall
from marft_envs.code.phrases import (
    BY_WORDS,
    LETTERS,
    PHRASES,
    Kind,
    Step,
    evaluate,
    to_code,
    to_words,
    wrong_expressions,
)
from marft_envs.code.problems import Case, Problem
from marft_envs.code.reports import describe_case
from marft_envs.generated import GeneratedTask

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
CACHE_SIZE = 20_000  # maximum cached functions
EXAMPLE_INPUTS: dict[Kind, tuple[Any, ...]] = {
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
    steps = [Step(*step) for step in data["steps"]]
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


def _draw_chain(random: Random, kind: Kind, length: int) -> list[Step]:
    """Draw a chain of compatible steps. No phrase occurs twice in a row."""
    steps: list[Step] = []
    while len(steps) < length:
        choices = [
            phrase_option
            for phrase_option in PHRASES
            if phrase_option.input_kind == kind and (not steps or phrase_option.words != steps[-1].words)
        ]
        phrase = random.choice(choices)
        number = random.randint(phrase.low, phrase.high) if "{n}" in phrase.words else 0
        steps.append(Step(phrase.words, number, random.choice(LETTERS) if "{c}" in phrase.words else ""))
        kind = BY_WORDS[phrase.words].output_kind
    return steps


def _format_prompt(kind: Kind, steps: Sequence[Step], example_count: int) -> str:
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
    inputs: dict[str, Any] = {}
    while len(inputs) < count:
        if kind == "number":
            value: Any = random.randint(*(NUMBER_RANGE if count <= FEW_INPUTS else (-count, 2 * count)))
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
    chosen: list[Any] = []
    for expression in wrong:
        exposing = [x for x in inputs if evaluate(expression, x) != evaluate(code, x)]
        if exposing and not any(x in chosen for x in exposing):
            chosen.append(exposing[0])
    return [*chosen, *(x for x in inputs if x not in chosen)][: max(count, len(chosen))]


def _make_case(code: str, x: Any) -> Case:
    return Case(FunctionCall(ENTRY_NAME, (x,)), (evaluate(code, x),))
