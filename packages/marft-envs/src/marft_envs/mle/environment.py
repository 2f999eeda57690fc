"""Competition environment, from folders in MLE-bench format or generated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from random import Random
from typing import Annotated, ClassVar

from pydantic import Field, Strict, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.environment import Split
from marft.agents.sandbox.runner import require_isolation
from marft.agents.sandbox.settings import SandboxSettings
from marft.common.types import Task
from marft.config.settings import Fraction, SmallCount
from marft.envs.content_digest import DIGEST_KEY
from marft.envs.paths import AbsolutePath
from marft.envs.splits import split_small_set
from marft_envs.generated import GeneratedEnvironment, GeneratedTask
from marft_envs.mle.competition import Competition
from marft_envs.mle.generator import Kind, build_competition, generate_competition
from marft_envs.mle.loading import check_limits, find_competitions, read_competition
from marft_envs.mle.script import MleScript
from marft_envs.mle.session import MleRules, MleSession

DEFAULT_LIMITS = SandboxSettings(timeout_seconds=30.0, cpu_seconds=30, output_kb=2048)


class Mle(GeneratedEnvironment):
    """Competitions solved by programs that write predictions into a table.

    The team sees the task description and the first lines of the tables. It writes a program that creates
    ``submission.csv``. The program runs in a sandbox with the public files and the standard library, and without
    answers.

    The reward is 0 for a submission that cannot be graded. Otherwise it goes from ``valid`` to 1, in proportion to
    the fraction of the leaderboard that the submission beats. A medal counts as success.
    """

    stream: ClassVar[str] = "Mle"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    path: AbsolutePath = ""  # folder of one competition or of several; "": generate competitions
    metrics: dict[str, str] = {}  # metric by competition name; overrides its config.yaml
    # kinds of generated competitions
    kinds: Annotated[tuple[Kind, ...], Strict(False), Field(min_length=1)] = ("linear", "groups", "bound")
    rounds: SmallCount = 1  # maximum programs per episode; after each but the last, the team sees the program's output
    valid: Fraction = 0.1  # reward of a gradable submission that beats no team
    limits: SandboxSettings = DEFAULT_LIMITS  # sandbox limits of one program run

    @model_validator(mode="after")
    def _check_settings(self) -> Mle:
        if self.metrics and not self.path:
            raise PydanticCustomError("mle", "metrics are of competitions from a folder; name it: path")
        return self

    @property
    def episode_limit(self) -> int:
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
        return MleSession(competition, MleRules(self.rounds, self.valid, self.limits))

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
