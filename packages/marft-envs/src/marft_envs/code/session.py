"""Session for a programming problem: agents write programs and tests, run them and revise them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from marft.agents.answers import graded_text
from marft.common.types import JointAction, Observation, Step
from marft_envs.code.extraction import extract_program, extract_tests
from marft_envs.code.grading import Judgment, ProblemJudge
from marft_envs.code.problems import Case
from marft_envs.code.reports import format_report

CODER, TESTER, REFLECTOR = "coder", "tester", "reflector"


class CodeRules(NamedTuple):
    """Rules for a session, from the recipe."""

    rounds: int
    tester: bool
    reflector: bool
    fraction: bool
    tester_reward: float


class CodeSession:
    """Rounds of writing; with a reflector, each later round follows its comment.

    A program runs on the shown cases and on the tester's cases. The team sees only these results. The episode ends when
    all of them are right, or after the last round. Then the hidden tests determine the reward of the last program.
    """

    def __init__(self, judge: ProblemJudge, rules: CodeRules) -> None:
        self.judge, self.rules = judge, rules
        self.program, self.report = "", ""
        self.proposed_tests: list[Case] = []
        self.round, self.awaits_comment = 0, False

    async def reset(self) -> Observation:
        """Return the problem statement."""
        return self._build_observation()

    async def step(self, actions: JointAction) -> Step:
        """Judge the new program and tests, or continue after the reflector's comment."""
        if self.awaits_comment:
            self.awaits_comment = False
            return Step(self._build_observation(), 0.0)
        if actions.answer is not None:
            self.program = extract_program(graded_text(actions.answer))
        tests = actions.for_role(TESTER) if self.rules.tester else None
        if tests is not None:
            problem = self.judge.problem
            names = problem.asserts.names if problem.asserts else ()
            self.proposed_tests = extract_tests(graded_text(tests), problem.entry, names)
        self.round += 1
        visible_cases = [*self.judge.problem.examples, *self.proposed_tests]
        verdict = await asyncio.to_thread(self.judge.judge, self.program, visible_cases)
        cases = zip(visible_cases, verdict.shown, strict=True)
        self.report = format_report(tuple((case, outcome, right) for case, (outcome, right) in cases))
        over = verdict.passes_shown or self.round == self.rules.rounds
        if over:
            return await self._final_step(verdict)
        self.awaits_comment = self.rules.reflector
        return Step(self._build_observation(), 0.0, info={"progress": verdict.pass_rate})

    async def _final_step(self, verdict: Judgment) -> Step:
        solved = all(verdict.hidden)
        agent_rewards: Mapping[str, float] = {}
        if self.rules.tester:
            test_score = await asyncio.to_thread(self.judge.score_tests, self.proposed_tests)
            agent_rewards = {} if test_score is None else {TESTER: self.rules.tester_reward * test_score}
        reward = verdict.pass_rate if self.rules.fraction else float(solved)
        return Step(
            Observation(""),
            reward,
            terminated=True,
            agent_rewards=agent_rewards,
            success=solved,
            info={"progress": verdict.pass_rate},
        )

    async def close(self) -> None:
        """No-op: a program that is still running ends by its limits."""

    def _build_observation(self) -> Observation:
        problem = self.judge.problem
        parts = [problem.statement]
        if self.round:
            parts += ["Your program:", self.program or "(none)", self.report]
        return Observation("\n".join(parts), turn=self._roles_in_turn())

    def _roles_in_turn(self) -> tuple[str, ...]:
        """Return the roles in turn; empty if the recipe has neither tester nor reflector."""
        if self.awaits_comment:
            return (REFLECTOR,)
        writers = (CODER, TESTER) if self.rules.tester else (CODER,)
        return writers if self.rules.tester or self.rules.reflector else ()
