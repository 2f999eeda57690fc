"""Teams that say numbers, without models: how much hangs on whom is known beforehand."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marft.agents.game import Attempt
from marft.agents.play import play_all
from marft.agents.team import Team
from marft.common.log import receive_logs
from marft.common.types import ActionKey, Episode, JointAction, Observation, Step, Task
from marft.config import RunSettings
from marft.config.interfaces.environment import Environment
from marft.rollout.runner import ignore_episode
from marft.runs.run_folder import RunFolder
from marft_lab.team_evaluation.options import ComparisonOptions
from marft_lab.team_evaluation.session import TeamEvaluation, evaluate_team
from tests.fakes import FakeEngine, game
from tests.helpers import settings

OBSERVED, MESSAGE = re.compile(r"number (\d+)"), re.compile(r"msg=(\d+);")


class Numbers(Environment):
    """The right answer stands in the task."""

    count: int = 40
    tells: bool = True  # whether it says what is a success

    def tasks(self, split: str) -> list[Task]:
        drawn = random.Random(split)
        made = [str(drawn.randrange(10, 1000)) for _ in range(self.count)]
        return [Task(f"{split}/{place}", f"number {n}", {"answer": n}) for place, n in enumerate(made)]

    def start(self, task: Task, seed: int) -> Any:
        return _Session(task, self.tells)


class _Session:
    def __init__(self, task: Task, tells: bool) -> None:
        self.task, self.tells = task, tells

    async def reset(self) -> Observation:
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        said = MESSAGE.findall(actions.answer.text if actions.answer else "")
        right = said[-1:] == [str(self.task.data["answer"])]
        return Step(Observation(""), float(right), terminated=True, success=right if self.tells else None)

    async def close(self) -> None: ...


Say = Callable[[ActionKey, str, str], str]  # key, prompt and the checkpoint of the policy


def number_in(prompt: str) -> str:
    """What the observation says."""
    return OBSERVED.findall(prompt)[-1]


def heard_in(prompt: str) -> str:
    """What the last message says, or 0."""
    return (["0", *MESSAGE.findall(prompt)])[-1]


def chance(key: ActionKey, of: float) -> bool:
    """Drawn for this action alone."""
    return random.Random(repr(key)).random() < of


class FakeRollouts:
    """Plays without models; weights are the names of their checkpoints."""

    def __init__(self, run: RunSettings, say: Say, stops: int = 10**9) -> None:
        self.run, self.stops = run, stops
        self.played: list[Attempt] = []
        self.weights = dict.fromkeys(run.policies, "base")
        self.engine = FakeEngine(lambda key, prompt: say(key, prompt, self.weights[self._policies[key.agent]]))
        self._game = game(
            run.environment, *(agent.role for agent in run.agents), engine=self.engine, organization=run.team
        )  # type: ignore[arg-type]
        policies = {agent.role: agent.policy for agent in run.agents}
        seats = self._game.team.agents
        self.team = replace(self._game.team, agents=tuple(replace(seat, policy=policies[seat.role]) for seat in seats))
        self.models = SimpleNamespace(
            compute_digests=dict,
            reset_policy=lambda name: self.weights.__setitem__(name, "base"),
            load_policy=self._load,
        )
        self._policies: Mapping[str, str] = {}

    def _load(self, name: str, folder: Path) -> None:
        self.weights[name] = folder.parents[1].name

    def publish(self, version: int) -> None: ...

    def set_prompt_versions(self, told: object) -> None: ...

    def play(
        self, attempts: Sequence[Attempt], team: Team | None = None, on_done: Callable[[Episode], None] = ignore_episode
    ) -> list[Episode]:
        team = team or self.team
        if len(self.played) + len(attempts) > self.stops:
            raise KeyboardInterrupt
        self.played += attempts
        self._policies = {agent.role: agent.policy for agent in team.agents}
        return asyncio.run(play_all(replace(self._game, team=team), attempts, 64, on_done))

    def close(self) -> None:
        self._game.threads.close()


class Played:
    """``evaluate_team`` on such a team, in a folder of its own.

    Args:
        names: checkpoints by the names that they are asked for.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, say: Say, **changes: Any) -> None:
        changes = {"environment": {"name": "tests.number_teams:Numbers"}, "evaluation": {"tasks": 12}, **changes}
        self.run = settings("tiny", path, **changes)
        self.folder, self.say = RunFolder(path / "test"), say
        self.rollouts: FakeRollouts | None = None
        self.stops = 10**9
        self.told: list[str] = []
        self.names = {"last": "step_000002", "best": "step_000001"}
        for name in self.names.values():
            for policy in self.run.trained_policies:
                (self.folder.checkpoints / name / "policies" / policy).mkdir(parents=True)
            (self.folder.checkpoints / name / "state.json").write_text(
                json.dumps({"files": {f"policies/{policy}/w": name for policy in self.run.trained_policies}})
            )
        monkeypatch.setattr("marft_lab.team_evaluation.session.open_rollout_runner", self._opened)
        monkeypatch.setattr("marft_lab.team_evaluation.session.find_checkpoint", self._find)

    def _find(self, run: RunSettings, folder: RunFolder, name: str) -> Path | None:
        return None if name == "base" else self.folder.checkpoints / self.names[name]

    @contextmanager
    def _opened(self, run: RunSettings) -> Iterator[FakeRollouts]:
        self.rollouts = FakeRollouts(run, self.say, self.stops)
        try:
            yield self.rollouts
        finally:
            self.rollouts.close()

    def worth(self, **options: Any) -> TeamEvaluation:
        """What the team is worth."""
        with receive_logs(self.told.append):
            return evaluate_team(self.run, self.folder, ComparisonOptions(**options), lambda _=None: None)

    @property
    def count(self) -> int:
        """Episodes that were played the last time."""
        return len(self.rollouts.played) if self.rollouts else 0


def accuracies(found: TeamEvaluation) -> dict[str, float]:
    """By the names of rows."""
    return {row.name: row.values["accuracy"].value for row in found.rows if "accuracy" in row.values}
