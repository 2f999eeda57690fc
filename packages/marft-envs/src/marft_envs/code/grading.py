"""Grading of programs by hidden tests, and of agent-written tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from marft_envs.code.asserting import Calls, calls_of, held
from marft_envs.code.comparing import Reader
from marft_envs.code.judging import Call, Feed, Limits, Outcome, outcomes
from marft_envs.code.mutants import mutants
from marft_envs.code.problems import Case, Problem

CHECKED = ("input.txt", "correct_output.txt", "solution_output.txt")  # arguments of a checker, in this order
MANY_TESTS = 50  # beyond this number, each test adds to the time limit
MOST_WRONG = 6  # maximum wrong programs for scoring tests
MOST_CHECKED = 4 * 2**20  # maximum characters of output per jail of the checker
LONGEST_SCORE = 100  # maximum characters read from a checker's output


class Verdict(NamedTuple):
    """Verdict on a program: outcomes and correctness for shown cases, and pass or fail for hidden tests."""

    shown: tuple[tuple[Outcome, bool], ...]
    hidden: tuple[bool, ...]

    @property
    def share(self) -> float:
        """Return the fraction of passed hidden tests, in [0, 1]."""
        return sum(self.hidden) / len(self.hidden)

    @property
    def looks_right(self) -> bool:
        """Return True if every shown case is right."""
        return all(right for _, right in self.shown)


class Bench:
    """Judge for programs on a single problem, with cached reference calls and wrong programs."""

    def __init__(self, problem: Problem, limits: Limits, tolerance: float) -> None:
        self.problem, self.tolerance = problem, tolerance
        self.limits = replace(
            limits,
            seconds=problem.seconds or limits.seconds,
            memory_mb=problem.memory_mb or limits.memory_mb,
            all_seconds=max(limits.all_seconds, 2 * problem.seconds) * max(1.0, problem.tests / MANY_TESTS),
        )
        self._calls: Calls | None = None
        self._wrong: tuple[str, ...] | None = None

    def judge(self, program: str, shown: Sequence[Case]) -> Verdict:
        """Judge a program by shown cases and by hidden tests.

        This call blocks.

        Raises:
            JudgingError: the problem's own reference program fails its tests, or the jail failed.
        """
        hidden_cases = self.problem.cases
        whole = self.problem.whole(program)
        # hidden cases run first: shown cases may be written by an agent, and could use up the time
        right = self.right(whole, [*hidden_cases, *shown])
        if self.problem.asserts:
            hidden = self._held(whole)
        else:
            hidden = tuple(is_right for _, is_right in right[: len(hidden_cases)])
        return Verdict(tuple(right[len(hidden_cases) :]), hidden)

    def right(self, program: str, cases: Sequence[Case]) -> list[tuple[Outcome, bool]]:
        """Run a program on cases; return each outcome in report form, with True if it is right."""
        found = outcomes([program], [case.given for case in cases], self.limits, self.problem.before)[0]
        compared = self._compared(cases, found)
        if not self.problem.checker:
            return compared
        fine = [index for index, (outcome, _) in enumerate(compared) if outcome.fine]
        checked = self._checked([_to_check(cases[index], found[index]) for index in fine])
        accepted = dict(zip(fine, checked, strict=True))
        return [(outcome, accepted.get(index, False)) for index, (outcome, _) in enumerate(compared)]

    def _compared(self, cases: Sequence[Case], found: Sequence[Outcome]) -> list[tuple[Outcome, bool]]:
        """Compare a program's outcomes with their cases."""
        return Reader(self.limits.all_seconds).compared(cases, found, self.tolerance)

    def _checked(self, given: Sequence[Feed]) -> list[bool]:
        """Run the checker on each output; return True where it accepts.

        The number of texts per jail is limited, so that their transfer does not block other work.
        """
        accepted: list[bool] = []
        while len(accepted) < len(given):
            lengths = accumulate(len(feed.files[CHECKED[-1]]) for feed in given[len(accepted) :])
            count = max(1, sum(length <= MOST_CHECKED for length in lengths))
            some = given[len(accepted) : len(accepted) + count]
            accepted += map(_accepted, outcomes([self.problem.checker], some, self.limits)[0])
        return accepted

    def worth(self, tests: Sequence[Case]) -> float | None:
        """Score agent-written tests, in [0, 1]; None without a reference or a wrong program.

        The score is a product of two fractions: tests that the reference program passes, and wrong programs that fail
        at least one of those tests. This call blocks.
        """
        reference = self.problem.reference
        wrong = self._wrong_programs() if reference else ()
        if not wrong:
            return None
        if not tests:
            return 0.0
        programs = [self.problem.whole(program) for program in (reference, *wrong)]
        found = self._found(programs, tests)
        table = [[right for _, right in self._compared(tests, row)] for row in found]  # [1 + wrong programs][tests]
        valid = [index for index, right in enumerate(table[0]) if right]
        caught = sum(any(not row[index] for index in valid) for row in table[1:])
        return len(valid) / len(tests) * caught / len(wrong)

    def _found(self, programs: Sequence[str], cases: Sequence[Case]) -> list[list[Outcome]]:
        """Run several programs on cases. Together they get the time limit of a single program."""
        limits = replace(self.limits, all_seconds=max(1.0, self.limits.all_seconds / max(1, len(programs))))
        return outcomes(programs, [case.given for case in cases], limits, self.problem.before)

    def _held(self, program: str) -> tuple[bool, ...]:
        """Return for each assert test whether a program passes it."""
        assert self.problem.asserts
        return tuple(held(self.problem.asserts, program, self._asserted_calls(), self.limits, self.problem.before))

    def _asserted_calls(self) -> Calls:
        if self._calls is None:
            assert self.problem.asserts
            self._calls = calls_of(self.problem.asserts, self.limits)
        return self._calls

    def _wrong_programs(self) -> tuple[str, ...]:
        """Return wrong programs: from the problem, else mutants of the reference that fail a hidden test."""
        if self._wrong is None:
            self._wrong = self.problem.wrong[:MOST_WRONG] or self._caught(_mutants(self.problem.reference))
        return self._wrong

    def _caught(self, programs: Sequence[str]) -> tuple[str, ...]:
        cases, whole = self.problem.cases, [self.problem.whole(program) for program in programs]
        if self.problem.asserts:
            shares = [all(self._held(one)) for one in whole]
        else:
            found = self._found(whole, cases)
            shares = [all(right for _, right in self._compared(cases, row)) for row in found]
        return tuple(one for one, right in zip(programs, shares, strict=True) if not right)[:MOST_WRONG]


def _mutants(program: str) -> list[str]:
    """Return mutants of a reference program; empty if current Python cannot parse it."""
    try:
        return mutants(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _to_check(case: Case, outcome: Outcome) -> Feed:
    assert not isinstance(case.given, Call)
    texts = (case.given.text, str(case.right[0]) if case.right else "", str(outcome.value))
    return Feed("", CHECKED, dict(zip(CHECKED, texts, strict=True)))


def _accepted(checked: Outcome) -> bool:
    """Return True if a checker's output begins with a score of 1."""
    words = str(checked.value).lstrip()[:LONGEST_SCORE].split() if checked.fine else []
    try:
        return bool(words) and math.isclose(float(words[0]), 1.0)
    except ValueError:
        return False
