"""Grading of programs by hidden tests, and of agent-written tests by wrong programs.

Wrong programs are generated from a right program by small faults.
"""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from marft_envs.code.assert_tests import Calls, record_reference_calls, run_asserts
from marft_envs.code.comparison import OutputReader
from marft_envs.code.execution import FunctionCall, Limits, Outcome, StdinInput, run_programs
from marft_envs.code.problems import Case, Problem

MAX_MUTANTS = 12  # maximum mutants per program
REPLACEMENTS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


def make_mutants(program: str) -> list[str]:
    """Return programs with a single fault each: another operator or constant, or a negated condition.

    Some mutants may still be right.

    >>> make_mutants("def f(x):\\n    return x + 1")
    ['def f(x):\\n    return None', 'def f(x):\\n    return x - 1', 'def f(x):\\n    return x + 2']

    Raises:
        SyntaxError: the program is not Python.
    """
    tree = ast.parse(program)
    places = list(_possible_changes(tree))
    step = max(1, len(places) // MAX_MUTANTS)
    texts = [_mutate(tree, number) for number in range(0, len(places), step)]
    return [text for text in dict.fromkeys(texts) if text != ast.unparse(tree)][:MAX_MUTANTS]


def _mutate(tree: ast.Module, number: int) -> str:
    tree_copy = copy.deepcopy(tree)
    list(_possible_changes(tree_copy))[number]()
    return ast.unparse(tree_copy)


def _possible_changes(tree: ast.AST) -> Iterator[Callable[[], None]]:
    """Yield a function for each possible change; calling it applies the change."""
    for node in ast.walk(tree):
        for name in ("op",):
            if type(getattr(node, name, None)) in REPLACEMENTS:
                yield _attribute_change(node, name, REPLACEMENTS[type(getattr(node, name))]())
        if isinstance(node, ast.Compare) and type(node.ops[0]) in REPLACEMENTS:
            yield _attribute_change(node, "ops", [REPLACEMENTS[type(node.ops[0])](), *node.ops[1:]])
        if isinstance(node, ast.Constant) and type(node.value) is int:
            yield _attribute_change(node, "value", node.value + 1)
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield _attribute_change(node, "test", ast.UnaryOp(ast.Not(), node.test))
        if isinstance(node, ast.Return) and node.value is not None:
            yield _attribute_change(node, "value", ast.Constant(None))


def _attribute_change(node: ast.AST, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(node, name, value)


CHECKER_FILES = ("input.txt", "correct_output.txt", "solution_output.txt")  # arguments of a checker, in this order
MANY_TESTS = 50  # beyond this number, each test adds to the time limit
MAX_WRONG_PROGRAMS = 6  # maximum wrong programs for scoring tests
MAX_CHECKED = 4 * 2**20  # maximum characters of output per jail of the checker
MAX_SCORE_TEXT = 100  # maximum characters read from a checker's output


class Judgment(NamedTuple):
    """Verdict on a program: outcomes and correctness for shown cases, and pass or fail for hidden tests."""

    shown: tuple[tuple[Outcome, bool], ...]
    hidden: tuple[bool, ...]

    @property
    def pass_rate(self) -> float:
        """Return the fraction of passed hidden tests, in [0, 1]."""
        return sum(self.hidden) / len(self.hidden)

    @property
    def passes_shown(self) -> bool:
        """Return True if every shown case is right."""
        return all(right for _, right in self.shown)


class ProblemJudge:
    """Judge for programs on a single problem, with cached reference calls and wrong programs."""

    def __init__(self, problem: Problem, limits: Limits, tolerance: float) -> None:
        self.problem, self.tolerance = problem, tolerance
        self.limits = replace(
            limits,
            seconds=problem.seconds or limits.seconds,
            memory_mb=problem.memory_mb or limits.memory_mb,
            all_seconds=max(limits.all_seconds, 2 * problem.seconds) * max(1.0, problem.test_count / MANY_TESTS),
        )
        self._calls_cache: Calls | None = None
        self._wrong_cache: tuple[str, ...] | None = None

    def judge(self, program: str, observation: Sequence[Case]) -> Judgment:
        """Judge a program by shown cases and by hidden tests.

        This call blocks.

        Raises:
            JudgeError: the problem's own reference program fails its tests, or the jail failed.
        """
        hidden_cases = self.problem.cases
        complete = self.problem.complete_program(program)
        # hidden cases run first: shown cases may be written by an agent, and could use up the time
        right = self.run_cases(complete, [*hidden_cases, *observation])
        if self.problem.asserts:
            hidden = self._run_asserts(complete)
        else:
            hidden = tuple(is_right for _, is_right in right[: len(hidden_cases)])
        return Judgment(tuple(right[len(hidden_cases) :]), hidden)

    def run_cases(self, program: str, cases: Sequence[Case]) -> list[tuple[Outcome, bool]]:
        """Run a program on cases; return each outcome in report form, with True if it is right."""
        raw_outcomes = run_programs([program], [case.input for case in cases], self.limits, self.problem.setup_code)[0]
        compared = self._compare(cases, raw_outcomes)
        if not self.problem.checker:
            return compared
        finished = [index for index, (outcome, _) in enumerate(compared) if outcome.is_ok]
        checked = self._run_checker([_checker_input(cases[index], raw_outcomes[index]) for index in finished])
        accepted = dict(zip(finished, checked, strict=True))
        return [(outcome, accepted.get(index, False)) for index, (outcome, _) in enumerate(compared)]

    def _compare(self, cases: Sequence[Case], raw_outcomes: Sequence[Outcome]) -> list[tuple[Outcome, bool]]:
        """Compare a program's outcomes with their cases."""
        return OutputReader(self.limits.all_seconds).compare_outputs(cases, raw_outcomes, self.tolerance)

    def _run_checker(self, checker_inputs: Sequence[StdinInput]) -> list[bool]:
        """Run the checker on each output; return True where it accepts.

        The number of texts per jail is limited, so that their transfer does not block other work.
        """
        accepted: list[bool] = []
        while len(accepted) < len(checker_inputs):
            lengths = accumulate(len(feed.files[CHECKER_FILES[-1]]) for feed in checker_inputs[len(accepted) :])
            count = max(1, sum(length <= MAX_CHECKED for length in lengths))
            batch = checker_inputs[len(accepted) : len(accepted) + count]
            accepted += map(_is_accepted, run_programs([self.problem.checker], batch, self.limits)[0])
        return accepted

    def score_tests(self, tests: Sequence[Case]) -> float | None:
        """Score agent-written tests, in [0, 1]; None without a reference or a wrong program.

        The score is a product of two fractions: tests that the reference program passes, and wrong programs that fail
        at least one of those tests. This call blocks.
        """
        reference = self.problem.reference
        wrong_programs = self._wrong_programs() if reference else ()
        if not wrong_programs:
            return None
        if not tests:
            return 0.0
        programs = [self.problem.complete_program(program) for program in (reference, *wrong_programs)]
        results = self._run_programs(programs, tests)
        table = [[right for _, right in self._compare(tests, row)] for row in results]  # [1 + wrong programs][tests]
        valid = [index for index, right in enumerate(table[0]) if right]
        caught = sum(any(not row[index] for index in valid) for row in table[1:])
        return len(valid) / len(tests) * caught / len(wrong_programs)

    def _run_programs(self, programs: Sequence[str], cases: Sequence[Case]) -> list[list[Outcome]]:
        """Run several programs on cases. Together they get the time limit of a single program."""
        limits = replace(self.limits, all_seconds=max(1.0, self.limits.all_seconds / max(1, len(programs))))
        return run_programs(programs, [case.input for case in cases], limits, self.problem.setup_code)

    def _run_asserts(self, program: str) -> tuple[bool, ...]:
        """Return for each assert test whether a program passes it."""
        assert self.problem.asserts
        return tuple(
            run_asserts(self.problem.asserts, program, self._reference_calls(), self.limits, self.problem.setup_code)
        )

    def _reference_calls(self) -> Calls:
        if self._calls_cache is None:
            assert self.problem.asserts
            self._calls_cache = record_reference_calls(self.problem.asserts, self.limits)
        return self._calls_cache

    def _wrong_programs(self) -> tuple[str, ...]:
        """Return wrong programs: from the problem, else mutants of the reference that fail a hidden test."""
        if self._wrong_cache is None:
            self._wrong_cache = self.problem.wrong_programs[:MAX_WRONG_PROGRAMS] or self._failing_programs(
                _make_mutants(self.problem.reference)
            )
        return self._wrong_cache

    def _failing_programs(self, programs: Sequence[str]) -> tuple[str, ...]:
        cases, complete = self.problem.cases, [self.problem.complete_program(program) for program in programs]
        if self.problem.asserts:
            passed = [all(self._run_asserts(complete_program)) for complete_program in complete]
        else:
            results = self._run_programs(complete, cases)
            passed = [all(right for _, right in self._compare(cases, row)) for row in results]
        return tuple(complete_program for complete_program, right in zip(programs, passed, strict=True) if not right)[
            :MAX_WRONG_PROGRAMS
        ]


def _make_mutants(program: str) -> list[str]:
    """Return mutants of a reference program; empty if current Python cannot parse it."""
    try:
        return make_mutants(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _checker_input(case: Case, outcome: Outcome) -> StdinInput:
    assert not isinstance(case.input, FunctionCall)
    texts = (case.input.text, str(case.expected[0]) if case.expected else "", str(outcome.value))
    return StdinInput("", CHECKER_FILES, dict(zip(CHECKER_FILES, texts, strict=True)))


def _is_accepted(checked: Outcome) -> bool:
    """Return True if a checker's output begins with a score of 1."""
    words = str(checked.value).lstrip()[:MAX_SCORE_TEXT].split() if checked.is_ok else []
    try:
        return bool(words) and math.isclose(float(words[0]), 1.0)
    except ValueError:
        return False
