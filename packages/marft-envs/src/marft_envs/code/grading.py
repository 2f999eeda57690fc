"""What a program is worth: how many tests it passes that nobody is shown; and what tests are worth that an agent has
written."""

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

CHECKED = ("input.txt", "correct_output.txt", "solution_output.txt")  # what a checker is told, in this order
MANY_TESTS = 50  # from here on a program has time for each further one
MOST_WRONG = 6  # wrong programs that tests are tried on
MOST_CHECKED = 4 * 2**20  # characters that are printed, of one jail of the checker
LONGEST_SCORE = 100  # characters of what a checker prints that are read


class Verdict(NamedTuple):
    """Of a program: what came of each case that was shown, and whether that was right; and which hidden tests it
    passes."""

    shown: tuple[tuple[Outcome, bool], ...]
    hidden: tuple[bool, ...]

    @property
    def share(self) -> float:
        """Of the hidden tests, from 0 to 1."""
        return sum(self.hidden) / len(self.hidden)

    @property
    def looks_right(self) -> bool:
        """Whether nothing that the team can see is wrong."""
        return all(right for _, right in self.shown)


class Bench:
    """Judges programs for one problem, and remembers what all of them need."""

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
        """Judge a program: by cases that the team is shown, and by those that it is not. Blocks.

        Raises:
            JudgingError: the problem's own right program does not pass its tests, or there is no jail.
        """
        hidden_cases = self.problem.cases
        whole = self.problem.whole(program)
        right = self.right(whole, [*hidden_cases, *shown])  # the latter may be an agent's, and take all the time
        if self.problem.asserts:
            hidden = self._held(whole)
        else:
            hidden = tuple(is_right for _, is_right in right[: len(hidden_cases)])
        return Verdict(tuple(right[len(hidden_cases) :]), hidden)

    def right(self, program: str, cases: Sequence[Case]) -> list[tuple[Outcome, bool]]:
        """What comes of each case, as a report shows it, and whether it is right."""
        found = outcomes([program], [case.given for case in cases], self.limits, self.problem.before)[0]
        compared = self._compared(cases, found)
        if not self.problem.checker:
            return compared
        fine = [index for index, (outcome, _) in enumerate(compared) if outcome.fine]
        checked = self._checked([_to_check(cases[index], found[index]) for index in fine])
        accepted = dict(zip(fine, checked, strict=True))
        return [(outcome, accepted.get(index, False)) for index, (outcome, _) in enumerate(compared)]

    def _compared(self, cases: Sequence[Case], found: Sequence[Outcome]) -> list[tuple[Outcome, bool]]:
        """What one program's outcomes look like, and whether they are right."""
        return Reader(self.limits.all_seconds).compared(cases, found, self.tolerance)

    def _checked(self, given: Sequence[Feed]) -> list[bool]:
        """Whether the checker accepts; a jail takes so many texts alone that to hand them over stops nobody else."""
        accepted: list[bool] = []
        while len(accepted) < len(given):
            lengths = accumulate(len(feed.files[CHECKED[-1]]) for feed in given[len(accepted) :])
            count = max(1, sum(length <= MOST_CHECKED for length in lengths))
            some = given[len(accepted) : len(accepted) + count]
            accepted += map(_accepted, outcomes([self.problem.checker], some, self.limits)[0])
        return accepted

    def worth(self, tests: Sequence[Case]) -> float | None:
        """What tests are worth, from 0 to 1: the share of them that right programs pass, times the share of wrong
        programs that those fail; None where no right program is known, or no wrong one.

        Blocks.
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
        """What comes of cases with several programs, which take together as long as one may."""
        limits = replace(self.limits, all_seconds=max(1.0, self.limits.all_seconds / max(1, len(programs))))
        return outcomes(programs, [case.given for case in cases], limits, self.problem.before)

    def _held(self, program: str) -> tuple[bool, ...]:
        """Which tests that are code a program passes."""
        assert self.problem.asserts
        return tuple(held(self.problem.asserts, program, self._asserted_calls(), self.limits, self.problem.before))

    def _asserted_calls(self) -> Calls:
        if self._calls is None:
            assert self.problem.asserts
            self._calls = calls_of(self.problem.asserts, self.limits)
        return self._calls

    def _wrong_programs(self) -> tuple[str, ...]:
        """Programs that are wrong: the problem's own, else mutants of the right one that fail a hidden test."""
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
    """Mutants of a right program; none of one in a language that Python no longer reads."""
    try:
        return mutants(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _to_check(case: Case, outcome: Outcome) -> Feed:
    assert not isinstance(case.given, Call)
    texts = (case.given.text, str(case.right[0]) if case.right else "", str(outcome.value))
    return Feed("", CHECKED, dict(zip(CHECKED, texts, strict=True)))


def _accepted(checked: Outcome) -> bool:
    """Whether a checker prints a score of 1: what it prints first."""
    words = str(checked.value).lstrip()[:LONGEST_SCORE].split() if checked.fine else []
    try:
        return bool(words) and math.isclose(float(words[0]), 1.0)
    except ValueError:
        return False
