"""Generated problems: small functions on a number, text or list, with tests and wrong programs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any

from marft.common.seeds import derive_seed
from marft_envs.code.judging import Call
from marft_envs.code.phrases import BY_WORDS, LETTERS, PHRASES, Kind, Step, in_code, in_words, mistakes, value_of
from marft_envs.code.problems import Case, Problem
from marft_envs.code.reports import case_in_words
from marft_envs.drawn import Drawing

ENTRY = "f"
NAMES: dict[Kind, str] = {"number": "a number", "text": "a text", "list": "a list of numbers"}
WORDS = ("cat", "tree", "apple", "stone", "river", "toast", "sister", "orchestra", "rosettes", "a", "moon", "Tea")
PROBES = 24  # inputs that distinguish functions
LARGEST = 10**6  # maximum absolute value of results
# range of input numbers, and the maximum number of inputs for it; more inputs use a wider range
NUMBERS, FEW_INPUTS = (-30, 60), 64
FEW = 3  # a function with no more distinct values than this is too simple
MOST_KEPT = 20_000  # maximum cached functions
EXAMPLE: dict[Kind, tuple[Any, ...]] = {
    "number": (1, 2, 3, 4, 5, 6), "text": ("cat", "tree", "sea", "toast"), "list": ([1, 2], [3, 1, 2], [4, 6, 5, 1])
}  # fmt: skip


def drawn(random: Random, kinds: Sequence[Kind], most_steps: int, tests: int, shown: int) -> Drawing:
    """Generate a nontrivial function: neither the identity nor nearly constant.

    Equal functions have equal contents, independent of their description.

    Args:
        random: source of randomness.
        kinds: allowed kinds of input.
        most_steps: maximum steps of the function.
        tests: minimum number of hidden tests.
        shown: number of shown examples.
    """
    while True:
        kind = random.choice(kinds)
        steps = _chain(random, kind, random.randint(1, most_steps))
        values = _values(kind, in_code(steps))
        if values:
            break
    data = {"kind": kind, "steps": [list(step) for step in steps], "tests": tests, "shown": shown, "fewest_steps": 1}
    return Drawing(f"{kind}: {values}", _asked(kind, steps, shown), data)


def problem_of(data: Any) -> Problem:
    """Build the problem from a task's data.

    Args:
        data: dictionary with ``kind``, ``steps``, the number of ``tests``, and the number of cases ``shown``.
    """
    kind: Kind = data["kind"]
    steps = [Step(*step) for step in data["steps"]]
    code, words = in_code(steps), in_words(steps)
    examples = _examples(kind, code, data["shown"])
    inputs = [x for x in _inputs(kind, data["tests"] + PROBES, words) if x not in EXAMPLE[kind][: data["shown"]]]
    told = _telling(code, inputs, mistakes(steps), data["tests"])
    cases = [_case(code, x) for x in told]
    wrong = [one for one in mistakes(steps) if any(value_of(one, x) != value_of(code, x) for x in told)]
    return Problem(
        _asked(kind, steps, data["shown"]), ENTRY, tuple(examples), tuple(cases),
        reference=program_of(code), wrong=tuple(map(program_of, wrong)),
    )  # fmt: skip


def program_of(code: str) -> str:
    """Return the source code for a function that returns an expression in ``x``."""
    return f"def {ENTRY}(x): return {code}"


def _chain(random: Random, kind: Kind, length: int) -> list[Step]:
    """Draw a chain of compatible steps. No phrase occurs twice in a row."""
    steps: list[Step] = []
    while len(steps) < length:
        choices = [one for one in PHRASES if one.takes == kind and (not steps or one.words != steps[-1].words)]
        phrase = random.choice(choices)
        number = random.randint(phrase.low, phrase.high) if "{n}" in phrase.words else 0
        steps.append(Step(phrase.words, number, random.choice(LETTERS) if "{c}" in phrase.words else ""))
        kind = BY_WORDS[phrase.words].gives
    return steps


def _asked(kind: Kind, steps: Sequence[Step], shown: int) -> str:
    examples = map(case_in_words, _examples(kind, in_code(steps), shown))
    return "\n".join([f"Write {ENTRY}(x), where x is {NAMES[kind]}: {in_words(steps)}.", *examples])


def _examples(kind: Kind, code: str, shown: int) -> list[Case]:
    return [_case(code, x) for x in EXAMPLE[kind] if value_of(code, x) is not None][:shown]


@lru_cache(MOST_KEPT)
def _values(kind: Kind, code: str) -> str:
    """Return the function's values on probe inputs; "" if they are too few, too large or trivial."""
    inputs = _inputs(kind, PROBES, "probes")
    values = [value_of(code, x) for x in inputs]
    large = any(isinstance(value, int) and abs(value) > LARGEST for value in values)
    if large or None in values or len(set(map(repr, values))) <= FEW or values == list(inputs):
        return ""
    return repr(values)


@lru_cache(MOST_KEPT)
def _inputs(kind: Kind, count: int, name: str) -> tuple[Any, ...]:
    """Return distinct inputs, equal for equal names."""
    random = Random(derive_seed(0, "code", kind, name))
    found: dict[str, Any] = {}
    while len(found) < count:
        if kind == "number":
            value: Any = random.randint(*(NUMBERS if count <= FEW_INPUTS else (-count, 2 * count)))
        elif kind == "text":
            value = "".join(random.choice(WORDS) for _ in range(random.randint(1, 3)))
        else:
            value = [random.randint(-9, 30) for _ in range(random.randint(0, 6))]
        found.setdefault(repr(value), value)
    return tuple(found.values())


def _telling(code: str, inputs: Sequence[Any], wrong: Sequence[str], count: int) -> list[Any]:
    """Choose inputs that expose wrong expressions, then further inputs up to ``count``.

    Each wrong expression gets at least one input with a different value, if any input has one.
    """
    chosen: list[Any] = []
    for one in wrong:
        telling = [x for x in inputs if value_of(one, x) != value_of(code, x)]
        if telling and not any(x in chosen for x in telling):
            chosen.append(telling[0])
    return [*chosen, *(x for x in inputs if x not in chosen)][: max(count, len(chosen))]


def _case(code: str, x: Any) -> Case:
    return Case(Call(ENTRY, (x,)), (value_of(code, x),))
