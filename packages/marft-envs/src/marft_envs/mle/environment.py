"""Competitions, from folders in MLE-bench's shape, or drawn."""

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
    """Competitions that are won by programs, which write predictions into a table.

    A team is shown what is to be predicted and the first lines of the tables, and writes a program that leaves
    ``submission.csv``. It runs in a jail with the public files, the standard library and no right answer.

    The reward is 0 for a submission that cannot be graded, and from ``valid`` to 1 for one that can, by the share of
    the leaderboard that it beats. A medal solves the task.
    """

    stream: ClassVar[str] = "Mle"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    path: Place = ""  # of a competition, or of several; "": they are drawn
    metrics: dict[str, str] = {}  # by competition: how it is graded, where its config.yaml does not say
    kinds: Annotated[tuple[Kind, ...], Strict(False), Field(min_length=1)] = ("linear", "groups", "bound")  # drawn
    rounds: Few = 1  # programs that may be written; after each but the last the team is told what it printed
    valid: Fraction = 0.1  # reward of a submission that can be graded and beats nobody
    limits: SandboxSettings = LIMITS  # of a run of a program

    @model_validator(mode="after")
    def _fit_together(self) -> Mle:
        if self.metrics and not self.path:
            raise PydanticCustomError("mle", "metrics are of competitions from a folder; name it: path")
        return self

    @property
    def episode_limit(self) -> int:
        """A step for each program."""
        return self.rounds

    def draw(self, random: Random) -> Drawing:
        """A small competition."""
        return drawn(random, self.kinds)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Competitions of a split. Of those from a folder a fifth is the test, a fifth validation.

        Raises:
            ValueError: a folder cannot be used, or the machine offers no isolation.
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

    def start(self, task: Task, seed: int) -> MleSession:  # noqa: ARG002  nothing here is random
        """One attempt at a competition."""
        made = competition_of(task.prompt, task.data) if "kind" in task.data else self._competitions[task.id]
        return MleSession(made, Rules(self.rounds, self.valid, self.limits))

    def script(self, skill: float = 1.0) -> Competitor | None:
        """Whoever writes, where competitions are drawn."""
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
