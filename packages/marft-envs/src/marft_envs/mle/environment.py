"""Competition environment, from folders in MLE-bench format or generated.

Programs run one after another in the sandbox: public files in, submission.csv out. The last gradable submission counts.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field, Strict, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import graded_text
from marft.agents.sandbox.runner import SandboxSettings, require_isolation, run_python
from marft.common.texts import truncate
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.interfaces.environment import Split
from marft.config.paths import AbsolutePath
from marft.config.settings import Fraction, SmallCount
from marft.envs.splits import split_small_set
from marft.envs.tasks import DIGEST_KEY
from marft_envs.code.problems import extract_program
from marft_envs.generated import GeneratedEnvironment, GeneratedTask
from marft_envs.mle.competition import Competition, InvalidSubmissionError
from marft_envs.mle.generator import Kind, MleScript, build_competition, generate_competition
from marft_envs.mle.loading import check_limits, find_competitions, read_competition

PROGRAM_FILE, SUBMISSION_FILE = "solution.py", "submission.csv"
MAX_PRINTED = 4000  # characters of the program's output to keep, from the end
RUNNER_CODE = f"""
import contextlib, io, json, runpy, traceback
printed = io.StringIO()
with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
    try:
        runpy.run_path({PROGRAM_FILE!r}, run_name="__main__")
    except SystemExit:
        pass
    except BaseException as error:
        print("".join(traceback.format_exception_only(error)))
try:
    with open({SUBMISSION_FILE!r}, encoding="utf-8") as file:
        left = file.read()
except (OSError, UnicodeDecodeError):
    left = None
print(json.dumps([printed.getvalue()[-{MAX_PRINTED}:], left]))
"""
TEXT_PATTERN = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
RESULT_PATTERN = re.compile(rf"\[{TEXT_PATTERN}, (?:{TEXT_PATTERN}|null)\]")  # two JSON texts and nothing nested
OUTCOME_TEXTS = {
    "timed_out": "it ran out of time",
    "killed": "it was ended by a limit of time, memory or files",
    "too_much_output": "its submission is too large",
    "failed": "it ended before it was through",
    "finished": "it ended before it was through",
}


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Result of a program.

    Args:
        printed: last part of the program's output, or the reason for its end.
        submission: content of submission.csv; None if missing or not UTF-8.
    """

    printed: str
    submission: str | None


def run_program(program: str, public: Mapping[str, bytes], limits: SandboxSettings) -> ProgramResult:
    """Run a program with the public files in the sandbox, without any answers.

    Raises:
        ValueError: the machine offers no isolation, and the limits require it.
    """
    sandbox_result = run_python(RUNNER_CODE, limits, files={**public, PROGRAM_FILE: program.encode("utf-8", "replace")})
    try:
        result_match = RESULT_PATTERN.fullmatch(sandbox_result.output.rstrip("\n").rpartition("\n")[2])
        printed, submission = (
            json.loads(result_match[0]) if result_match else (OUTCOME_TEXTS[sandbox_result.outcome], None)
        )
    except ValueError:  # invalid JSON string
        return ProgramResult(OUTCOME_TEXTS[sandbox_result.outcome], None)
    return ProgramResult(printed.strip(), submission)


MEDALS = ("gold", "silver", "bronze")
MAX_OUTPUT = 1500  # characters of a program's output in the observation
HEAD_LINES = 4  # lines of each public table in the observation
TABLE_SUFFIXES = (".csv", ".tsv")


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

    def __init__(self, competition: Competition, settings: Mle) -> None:
        self.competition, self.settings = competition, settings
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
            public, limits = self.competition.public, self.settings.limits
            program_result = await asyncio.to_thread(run_program, program, public, limits)
        grade = grade_submission(self.competition, program_result.submission)
        if grade.score is not None or self.last_grade.score is None:
            self.last_grade = grade
        printed = truncate(program_result.printed, MAX_OUTPUT) or "(nothing)"
        self.feedback = f"It printed:\n{printed}\n{grade.problem or 'The submission is valid.'}"
        over = self.round >= self.settings.rounds
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

        It is 0 for an ungradable submission. Otherwise it goes from ``valid_reward`` to 1 by the share of beaten teams.
        """
        if self.last_grade.score is None:
            return 0.0
        return self.settings.valid_reward + (1 - self.settings.valid_reward) * self.last_grade.share_beaten

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
            parts += [self.feedback, f"Program {self.round + 1} of {self.settings.rounds}."]
        return Observation("\n".join(parts))


DEFAULT_LIMITS = SandboxSettings(timeout_seconds=30.0, cpu_seconds=30, output_kb=2048)


class Mle(GeneratedEnvironment):
    """Competitions solved by programs that write predictions into a table.

    The team sees the task description and the first lines of the tables. It writes a program that creates
    ``submission.csv``. The program runs in a sandbox with the public files and the standard library, and without
    answers.

    The reward is 0 for a submission that cannot be graded. Otherwise it goes from ``valid_reward`` to 1, in proportion
    to the fraction of the leaderboard that the submission beats. A medal counts as success.
    """

    stream: ClassVar[str] = "Mle"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    path: AbsolutePath = Field(
        default="", description='folder of one competition or of several; "": generate competitions'
    )
    metrics: dict[str, str] = Field(default={}, description="metric by competition name; overrides its config.yaml")
    kinds: Annotated[tuple[Kind, ...], Strict(False), Field(min_length=1)] = Field(
        default=("linear", "groups", "bound"), description="kinds of generated competitions"
    )
    rounds: SmallCount = Field(
        default=1, description="maximum programs per episode; between programs, the team sees the output"
    )
    valid_reward: Fraction = Field(default=0.1, description="reward of a valid submission that beats no team")
    limits: SandboxSettings = Field(default=DEFAULT_LIMITS, description="sandbox limits of one program run")

    @model_validator(mode="after")
    def _check_settings(self) -> Mle:
        if self.metrics and not self.path:
            raise PydanticCustomError("mle", "metrics are of competitions from a folder; name it: path")
        return self

    @property
    def max_episode_steps(self) -> int:
        """Maximum steps in an episode: one per program."""
        return self.rounds

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a small competition."""
        return generate_competition(random, self.kinds)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the competitions of a split; from a folder, a fifth is for test and a fifth for validation.

        Raises:
            ValueError: a folder is invalid, or the machine offers no isolation.
        """
        require_isolation(self.limits)
        if not self.path:
            return super().tasks(split)
        split_by_name = split_small_set(self._competitions)
        return [
            Task(
                name,
                competition.description,
                {"competition": name, "metric": competition.metric, DIGEST_KEY: self._digests[name], "fewest_steps": 1},
            )
            for name, competition in self._competitions.items()
            if split_by_name[name] == split
        ]

    def start(self, task: Task, seed: int) -> MleSession:  # noqa: ARG002  no randomness in an episode
        """Start an attempt at a competition."""
        competition = build_competition(task.prompt, task.data) if "kind" in task.data else self._competitions[task.id]
        return MleSession(competition, self)

    def script(self, skill: float = 1.0) -> MleScript | None:
        """Return a policy for generated competitions; None for competitions from a folder."""
        return None if self.path else MleScript(skill)

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {name: competition.digest for name, competition in self._competitions.items()}

    @cached_property
    def _competitions(self) -> dict[str, Competition]:
        competitions = {
            name: read_competition(folder, self.metrics) for name, folder in find_competitions(self.path).items()
        }
        for name, competition in competitions.items():
            check_limits(name, competition, self.limits)
        return competitions
