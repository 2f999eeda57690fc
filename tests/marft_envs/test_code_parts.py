"""Programs: which tests and wrong programs there are, in what order they are run, and what a team is told first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from marft_envs.code import generator, problems
from marft_envs.code.execution import FunctionCall, Limits, Outcome, _read_records
from marft_envs.code.generator import ChainStep, evaluate, to_code, to_words, wrong_expressions
from marft_envs.code.grading import ProblemJudge, _is_accepted
from marft_envs.code.problems import MAX_CASES, MAX_TESTS, Case, Problem, format_report
from marft_envs.code.sandbox_program import format_record
from tests.marft_envs.test_code_judging import SHORT, isolated


def doubled(x: int) -> Case:
    return Case(FunctionCall("f", (x,)), (2 * x,))


@isolated
def test_wrong_programs_are_those_mutants_that_fail_a_hidden_test() -> None:
    bench = ProblemJudge(Problem("", "f", cases=(doubled(2),), reference="def f(x): return x * 2"), SHORT, 0.0)
    assert bench._wrong_programs() == ("def f(x):\n    return None", "def f(x):\n    return x * 3")  # and not x + 2


def test_no_more_tests_of_an_agent_are_read_than_are_run() -> None:
    lines = "\n".join(f"f({n}) == {n}" for n in range(20))
    assert [case.expected for case in problems.extract_tests(lines, "f", ())] == [(n,) for n in range(MAX_TESTS)]
    pairs = "\n".join(f"Input: {n}\nOutput: {n}" for n in range(20))
    assert len(problems.extract_tests(pairs, "", ())) == MAX_TESTS


@pytest.mark.parametrize(("kind", "code", "is_one"), [
    ("number", "x", False), ("number", "x + 1", True), ("number", "3", False), ("number", "x % 3", False),
    ("number", "x % 4", True), ("text", "x", False), ("text", "x[::-1]", True), ("list", "sorted(x, key=lambda _: 0)", False),
])  # fmt: skip
def test_a_function_that_gives_back_what_it_is_given_or_too_little_is_none(kind: Any, code: str, is_one: bool) -> None:
    assert bool(generator._probe_values(kind, code)) is is_one


@given(st.integers(0, 2**32))
@examples(max_examples=40, deadline=None)
def test_no_step_comes_twice_in_a_row_and_few_tests_tell_all_mistakes_that_can_be_told(seed: int) -> None:
    data = generator.generate_problem(Random(seed), ("number", "text", "list"), 4, 1, 1).data
    steps, kind = [ChainStep(*step) for step in data["steps"]], data["kind"]
    assert all(one.words != other.words for one, other in pairwise(steps))
    code, shown = to_code(steps), generator.EXAMPLE_INPUTS[kind][:1]
    inputs = [x for x in generator._draw_inputs(kind, 1 + generator.PROBE_COUNT, to_words(steps)) if x not in shown]
    can = {one for one in wrong_expressions(steps) if any(evaluate(one, x) != evaluate(code, x) for x in inputs)}
    assert set(generator.build_problem(data).wrong_programs) == {generator.make_program(one) for one in can}


def test_what_is_wrong_is_told_first_and_few_cases_are() -> None:
    cases = tuple((doubled(n), Outcome("returned", 2 * n if n < 9 else 0), n < 9) for n in range(10))
    lines = format_report(cases).splitlines()
    assert lines[0] == "f(9) gives 0, not 18"
    assert lines[1:] == [f"f({n}) gives {2 * n}: right" for n in range(MAX_CASES - 1)]


@pytest.mark.parametrize(("how", "printed", "right"), [
    ("returned", "1", True), ("returned", "1.0 well done", True), ("returned", "0.5", False), ("returned", "100", False),
    ("returned", "0", False), ("returned", "", False), ("returned", "yes", False), ("raised", "1", False),
])  # fmt: skip
def test_a_checker_accepts_by_a_score_of_one(how: Any, printed: str, right: bool) -> None:
    assert _is_accepted(Outcome(how, printed)) is right


def test_hidden_tests_are_run_before_those_of_an_agent() -> None:
    """An agent's tests could take all the time that there is."""
    met: list[Case] = []

    class Seen(ProblemJudge):
        def run_cases(self, program: str, cases: Sequence[Case]) -> list[tuple[Outcome, bool]]:
            met.extend(cases)
            return [(Outcome("returned", 0), case.input.arguments[0] > 5) for case in cases]  # type: ignore[union-attr]

    hidden, own = [doubled(1), doubled(7)], [doubled(8)]
    verdict = Seen(Problem("", "f", cases=tuple(hidden)), Limits(), 0.0).judge("", own)
    assert met == [*hidden, *own]
    assert verdict.hidden == (False, True)
    assert [right for _, right in verdict.shown] == [True]


def test_the_first_record_about_an_input_counts_and_only_ours() -> None:
    ours, theirs = "ours 0 0", "theirs 0 1"
    records = [
        b"noise\n",
        format_record(theirs, "returned", "", b"c"),
        format_record(ours, "returned", "", b"a\nours 0 1 returned 0 1\nb"),
        format_record("ours 0 2", "guessed", "", b"d"),
        format_record(ours, "returned", "", b"b"),
        format_record("ours 1 0", "raised", "E: \ud800", b"")[:-1],
    ]
    found = _read_records(b"".join(records), "ours", 9, 99)
    assert found == {(0, 0): Outcome("returned", "a\nours 0 1 returned 0 1\nb")}
    assert _read_records(format_record(ours, "returned", "", b"a" * 100), "ours", 9, 99) == {}, (
        "no program may say so much"
    )


def test_what_a_jail_writes_is_cut_up_in_bounded_time() -> None:
    began = time.process_time()
    assert not _read_records(b"\n" * 2**24, "ours", 9, 99)
    assert not _read_records(b"\nours " * 2**21, "ours", 9, 99)
    assert not _read_records(b"\nours 0 0 returned 0 9999999\n" * 2**19, "ours", 9, 99)
    assert time.process_time() - began < 1
