"""One attempt at a problem: programs and tests are written, run, looked at and written anew."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from marft.agents.answers import text_said
from marft.common.types import JointAction, Observation, Step
from marft_envs.code.grading import Bench, Verdict
from marft_envs.code.problems import Case
from marft_envs.code.proposing import program_in, tests_in
from marft_envs.code.reports import report

CODER, TESTER, REFLECTOR = "coder", "tester", "reflector"


class Rules(NamedTuple):
    """How an attempt goes, as the recipe says."""

    rounds: int
    tester: bool
    reflector: bool
    fraction: bool
    tester_reward: float


class Attempt:
    """Rounds of writing; between them, where there is a reflector, one of looking at what came of it.

    A program is run on the cases that were shown and on the tester's; the team is told of those alone. The attempt
    is over when all of them are right, and with the last round; then the last program is paid for by the hidden tests.
    """

    def __init__(self, bench: Bench, rules: Rules) -> None:
        self.bench, self.rules = bench, rules
        self.program, self.told = "", ""
        self.proposed: list[Case] = []
        self.round, self.reflecting = 0, False

    async def reset(self) -> Observation:
        return self._observation()

    async def step(self, actions: JointAction) -> Step:
        """Take what was written, or what was said of it."""
        if self.reflecting:
            self.reflecting = False
            return Step(self._observation(), 0.0)
        if actions.answer is not None:
            self.program = program_in(text_said(actions.answer))
        tests = actions.of(TESTER) if self.rules.tester else None
        if tests is not None:
            problem = self.bench.problem
            names = problem.asserts.names if problem.asserts else ()
            self.proposed = tests_in(text_said(tests), problem.entry, names)
        self.round += 1
        shown = [*self.bench.problem.examples, *self.proposed]
        verdict = await asyncio.to_thread(self.bench.judge, self.program, shown)
        cases = zip(shown, verdict.shown, strict=True)
        self.told = report(tuple((case, outcome, right) for case, (outcome, right) in cases))
        over = verdict.looks_right or self.round == self.rules.rounds
        if over:
            return await self._last(verdict)
        self.reflecting = self.rules.reflector
        return Step(self._observation(), 0.0, info={"progress": verdict.share})

    async def _last(self, verdict: Verdict) -> Step:
        solved = all(verdict.hidden)
        earned: Mapping[str, float] = {}
        if self.rules.tester:
            worth = await asyncio.to_thread(self.bench.worth, self.proposed)
            earned = {} if worth is None else {TESTER: self.rules.tester_reward * worth}
        reward = verdict.share if self.rules.fraction else float(solved)
        return Step(
            Observation(""),
            reward,
            terminated=True,
            agent_rewards=earned,
            success=solved,
            info={"progress": verdict.share},
        )

    async def close(self) -> None:
        """Nothing is held: a program that still runs ends by its limits."""

    def _observation(self) -> Observation:
        problem = self.bench.problem
        parts = [problem.statement]
        if self.round:
            parts += ["Your program:", self.program or "(none)", self.told]
        return Observation("\n".join(parts), turn=self._turn())

    def _turn(self) -> tuple[str, ...]:
        """Whose turn it is, where the recipe has told us of the roles."""
        if self.reflecting:
            return (REFLECTOR,)
        writers = (CODER, TESTER) if self.rules.tester else (CODER,)
        return writers if self.rules.tester or self.rules.reflector else ()
