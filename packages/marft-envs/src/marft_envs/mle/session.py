"""Attempt at a competition: programs run one after another, and the last gradable submission counts."""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple

from marft.agents.answers import text_said
from marft.agents.sandbox.settings import SandboxSettings
from marft.common.texts import cut
from marft.common.types import JointAction, Observation, Step
from marft_envs.code.proposing import program_in
from marft_envs.mle.competition import Competition, InvalidError
from marft_envs.mle.running import SUBMISSION, Left, run

MEDALS = ("gold", "silver", "bronze")
LONGEST = 1500  # characters of a program's output in the observation
HEAD = 4  # lines of each public table in the observation
TABLES = (".csv", ".tsv")


class Rules(NamedTuple):
    """Rules for an attempt.

    Args:
        rounds: maximum programs.
        valid: reward of a gradable submission that beats no team.
        limits: sandbox limits of one program run.
    """

    rounds: int
    valid: float
    limits: SandboxSettings


class Graded(NamedTuple):
    """Grade of a submission.

    Args:
        score: score on the metric; None if the submission cannot be graded.
        medal: "gold", "silver", "bronze", or "".
        beaten: fraction of the leaderboard that the score beats.
        above_median: True if the score beats the median team.
        problem: reason why the submission cannot be graded; "" otherwise.
    """

    score: float | None
    medal: str
    beaten: float
    above_median: bool
    problem: str = ""


def graded(competition: Competition, submission: str | None) -> Graded:
    """Grade a submission against the answers and the leaderboard."""
    if submission is None:
        return Graded(None, "", 0.0, False, f"there is no {SUBMISSION}")
    try:
        score = competition.score(submission)
    except InvalidError as error:
        return Graded(None, "", 0.0, False, str(error))
    board = competition.leaderboard
    return Graded(score, board.medal(score), board.beaten(score), board.above_median(score))


class MleSession:
    """Rounds of program writing.

    After each round the team sees the program's output and whether its submission is gradable, never its score. The
    last gradable submission counts.
    """

    def __init__(self, competition: Competition, rules: Rules) -> None:
        self.competition, self.rules = competition, rules
        self.round, self.told = 0, ""
        self.last = Graded(None, "", 0.0, False, "nothing was written")

    async def reset(self) -> Observation:
        """Return the description and the first lines of the tables."""
        return self._shown()

    async def step(self, actions: JointAction) -> Step:
        """Run the program in the team's answer and grade its submission."""
        program = program_in(text_said(actions.answer))
        self.round += 1
        left = Left("", None)
        if program:
            left = await asyncio.to_thread(run, program, self.competition.public, self.rules.limits)
        found = graded(self.competition, left.submission)
        if found.score is not None or self.last.score is None:
            self.last = found
        printed = cut(left.printed, LONGEST) or "(nothing)"
        self.told = f"It printed:\n{printed}\n{found.problem or 'The submission is valid.'}"
        over = self.round >= self.rules.rounds
        worth, medal = self._worth(), bool(self.last.medal)
        info = {"progress": 1.0 if medal else min(worth, 0.99), "measures": self._measures()}
        return Step(
            Observation("") if over else self._shown(), worth if over else 0.0, terminated=over,
            success=medal if over else None, info=info,
        )  # fmt: skip

    async def close(self) -> None:
        """No-op: a running program ends by its limits."""

    def _worth(self) -> float:
        """Return the reward.

        It is 0 for an ungradable submission. Otherwise it goes from ``valid`` to 1 by the fraction of beaten teams.
        """
        if self.last.score is None:
            return 0.0
        return self.rules.valid + (1 - self.rules.valid) * self.last.beaten

    def _measures(self) -> dict[str, float]:
        medals = {f"medal_{name}": float(self.last.medal == name) for name in MEDALS}
        valid = self.last.score is not None
        return {
            "valid": float(valid), "any_medal": float(bool(self.last.medal)), **medals,
            "above_median": float(self.last.above_median), "beaten": self.last.beaten,
        }  # fmt: skip

    def _shown(self) -> Observation:
        parts = [self.competition.description]
        for name, content in sorted(self.competition.public.items()):
            if name.endswith(TABLES):
                lines = re.split(r"\r?\n", content[:LONGEST].decode("utf-8", "replace"))[:HEAD]
                parts += [f"{name}:", cut("\n".join(lines), LONGEST)]
            elif name != "description.md":
                parts.append(f"{name}: {len(content):,} bytes")
        if self.round:
            parts += [self.told, f"Program {self.round + 1} of {self.rules.rounds}."]
        return Observation("\n".join(parts))
