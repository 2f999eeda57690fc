"""Attempt at a competition: programs run one after another, and the last gradable submission counts."""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple

from marft.agents.answers import graded_text
from marft.agents.sandbox.settings import SandboxSettings
from marft.common.texts import truncate
from marft.common.types import JointAction, Observation, Step
from marft_envs.code.extraction import extract_program
from marft_envs.mle.competition import Competition, InvalidSubmissionError
from marft_envs.mle.execution import SUBMISSION_FILE, ProgramResult, run_program

MEDALS = ("gold", "silver", "bronze")
MAX_OUTPUT = 1500  # characters of a program's output in the observation
HEAD_LINES = 4  # lines of each public table in the observation
TABLE_SUFFIXES = (".csv", ".tsv")


class MleRules(NamedTuple):
    """Rules for an attempt.

    Args:
        rounds: maximum programs.
        valid_reward: reward of a gradable submission that beats no team.
        limits: sandbox limits of one program run.
    """

    rounds: int
    valid_reward: float
    limits: SandboxSettings


class SubmissionGrade(NamedTuple):
    """Grade of a submission.

    Args:
        score: score on the metric; None if the submission cannot be graded.
        medal: "gold", "silver", "bronze", or "".
        share_beaten: fraction of the leaderboard that the score beats.
        above_median: True if the score beats the median team.
        problem: reason why the submission cannot be graded; "" otherwise.
    """

    score: float | None
    medal: str
    share_beaten: float
    above_median: bool
    problem: str = ""


def grade_submission(competition: Competition, submission: str | None) -> SubmissionGrade:
    """Grade a submission against the answers and the leaderboard."""
    if submission is None:
        return SubmissionGrade(None, "", 0.0, False, f"there is no {SUBMISSION_FILE}")
    try:
        score = competition.score(submission)
    except InvalidSubmissionError as error:
        return SubmissionGrade(None, "", 0.0, False, str(error))
    board = competition.leaderboard
    return SubmissionGrade(score, board.medal_for(score), board.share_beaten(score), board.is_above_median(score))


class MleSession:
    """Rounds of program writing.

    After each round the team sees the program's output and whether its submission is gradable, never its score. The
    last gradable submission counts.
    """

    def __init__(self, competition: Competition, rules: MleRules) -> None:
        self.competition, self.rules = competition, rules
        self.round, self.feedback = 0, ""
        self.last_grade = SubmissionGrade(None, "", 0.0, False, "nothing was written")

    async def reset(self) -> Observation:
        """Return the description and the first lines of the tables."""
        return self._build_observation()

    async def step(self, actions: JointAction) -> Step:
        """Run the program in the team's answer and grade its submission."""
        program = extract_program(graded_text(actions.answer))
        self.round += 1
        program_result = ProgramResult("", None)
        if program:
            program_result = await asyncio.to_thread(run_program, program, self.competition.public, self.rules.limits)
        grade = grade_submission(self.competition, program_result.submission)
        if grade.score is not None or self.last_grade.score is None:
            self.last_grade = grade
        printed = truncate(program_result.printed, MAX_OUTPUT) or "(nothing)"
        self.feedback = f"It printed:\n{printed}\n{grade.problem or 'The submission is valid.'}"
        over = self.round >= self.rules.rounds
        reward, medal = self._compute_reward(), bool(self.last_grade.medal)
        info = {"progress": 1.0 if medal else min(reward, 0.99), "measures": self._metrics()}
        return Step(
            Observation("") if over else self._build_observation(),
            reward if over else 0.0,
            terminated=over,
            success=medal if over else None,
            info=info,
        )

    async def close(self) -> None:
        """No-op: a running program ends by its limits."""

    def _compute_reward(self) -> float:
        """Return the reward.

        It is 0 for an ungradable submission. Otherwise it goes from ``valid`` to 1 by the fraction of beaten teams.
        """
        if self.last_grade.score is None:
            return 0.0
        return self.rules.valid_reward + (1 - self.rules.valid_reward) * self.last_grade.share_beaten

    def _metrics(self) -> dict[str, float]:
        medals = {f"medal_{name}": float(self.last_grade.medal == name) for name in MEDALS}
        valid = self.last_grade.score is not None
        return {
            "valid": float(valid),
            "any_medal": float(bool(self.last_grade.medal)),
            **medals,
            "above_median": float(self.last_grade.above_median),
            "beaten": self.last_grade.share_beaten,
        }

    def _build_observation(self) -> Observation:
        parts = [self.competition.description]
        for name, content in sorted(self.competition.public.items()):
            if name.endswith(TABLE_SUFFIXES):
                lines = re.split(r"\r?\n", content[:MAX_OUTPUT].decode("utf-8", "replace"))[:HEAD_LINES]
                parts += [f"{name}:", truncate("\n".join(lines), MAX_OUTPUT)]
            elif name != "description.md":
                parts.append(f"{name}: {len(content):,} bytes")
        if self.round:
            parts += [self.feedback, f"Program {self.round + 1} of {self.rules.rounds}."]
        return Observation("\n".join(parts))
