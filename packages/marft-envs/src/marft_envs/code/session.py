"""Session for a programming problem: agents write programs and tests, run them and revise them."""

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
    """Rules for a session, from the recipe."""

    rounds: int
    tester: bool
    reflector: bool
    fraction: bool
    tester_reward: float


class Attempt:
    """Rounds of writing; with a reflector, each later round follows its comment.

    A program runs on the shown cases and on the tester's cases. The team sees only these results. The episode ends when
    all of them are right, or after the last round. Then the hidden tests determine the reward of the last program.
    """

    def __init__(self, bench: Bench, rules: Rules) -> None:
        self.bench, self.rules = bench, rules
        self.program, self.told = "", ""
        self.proposed: list[Case] = []
        self.round, self.reflecting = 0, False

    async def reset(self) -> Observation:
        """Return the problem statement."""
        return self._observation()

    async def step(self, actions: JointAction) -> Step:
        """Judge the new program and tests, or continue after the reflector's comment."""
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
        """No-op: a program that is still running ends by its limits."""

    def _observation(self) -> Observation:
        problem = self.bench.problem
        parts = [problem.statement]
        if self.round:
            parts += ["Your program:", self.program or "(none)", self.told]
        return Observation("\n".join(parts), turn=self._turn())

    def _turn(self) -> tuple[str, ...]:
        """Return the roles in turn; empty if the recipe has neither tester nor reflector."""
        if self.reflecting:
            return (REFLECTOR,)
        writers = (CODER, TESTER) if self.rules.tester else (CODER,)
        return writers if self.rules.tester or self.rules.reflector else ()
