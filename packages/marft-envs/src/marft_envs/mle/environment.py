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
from marft.config.settings import Few, Fraction
from marft.envs.contents import CONTENT
from marft.envs.paths import Place
from marft.envs.splits import dealt
from marft_envs.drawn import Drawing, Drawn
from marft_envs.mle.competition import Competition
from marft_envs.mle.drawing import Kind, competition_of, drawn
from marft_envs.mle.loading import check_room, found_in, read
from marft_envs.mle.script import Competitor
from marft_envs.mle.session import MleSession, Rules

LIMITS = SandboxSettings(seconds=30.0, cpu_seconds=30, output_kb=2048)


class Mle(Drawn):
    """Competitions solved by programs that write predictions into a table.

    The team sees the task description and the first lines of the tables. It writes a program that creates
    ``submission.csv``. The program runs in a sandbox with the public files and the standard library, and without
    answers.

    The reward is 0 for a submission that cannot be graded. Otherwise it goes from ``valid`` to 1, in proportion to
    the fraction of the leaderboard that the submission beats. A medal counts as success.
    """

    stream: ClassVar[str] = "Mle"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    path: Place = ""  # folder of one competition or of several; "": generate competitions
    metrics: dict[str, str] = {}  # metric by competition name; overrides its config.yaml
    # kinds of generated competitions
    kinds: Annotated[tuple[Kind, ...], Strict(False), Field(min_length=1)] = ("linear", "groups", "bound")
    rounds: Few = 1  # maximum programs per episode; after each but the last, the team sees the program's output
    valid: Fraction = 0.1  # reward of a gradable submission that beats no team
    limits: SandboxSettings = LIMITS  # sandbox limits of one program run

    @model_validator(mode="after")
    def _fit_together(self) -> Mle:
        if self.metrics and not self.path:
            raise PydanticCustomError("mle", "metrics are of competitions from a folder; name it: path")
        return self

    @property
    def episode_limit(self) -> int:
        """Maximum steps in an episode: one per program."""
        return self.rounds

    def draw(self, random: Random) -> Drawing:
        """Generate a small competition."""
        return drawn(random, self.kinds)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the competitions of a split; from a folder, a fifth is for test and a fifth for validation.

        Raises:
            ValueError: a folder is invalid, or the machine offers no isolation.
        """
        require_isolation(self.limits)
        if not self.path:
            return super().tasks(split)
        of = dealt(self._competitions)
        return [
            Task(name, one.description, {
                "competition": name, "metric": one.metric, CONTENT: self._digests[name], "fewest_steps": 1
            })
            for name, one in self._competitions.items()
            if of[name] == split
        ]  # fmt: skip

    def start(self, task: Task, seed: int) -> MleSession:  # noqa: ARG002  no randomness in an episode
        """Start an attempt at a competition."""
        made = competition_of(task.prompt, task.data) if "kind" in task.data else self._competitions[task.id]
        return MleSession(made, Rules(self.rounds, self.valid, self.limits))

    def script(self, skill: float = 1.0) -> Competitor | None:
        """Return a policy for generated competitions; None for competitions from a folder."""
        return None if self.path else Competitor(skill)

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {name: one.digest for name, one in self._competitions.items()}

    @cached_property
    def _competitions(self) -> dict[str, Competition]:
        found = {name: read(folder, self.metrics) for name, folder in found_in(self.path).items()}
        for name, made in found.items():
            check_room(name, made, self.limits)
        return found
