"""What every algorithm does with batches that hardly say anything, or say something impossible."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from marft.common.errors import RunError
from marft.common.types import Action, Episode, Fork, Observation, Status, Task, Transition
from marft.config.algorithms import PRESETS
from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput
from marft.config.interfaces.environment import Environment
from marft.config.interfaces.schedule import Progress
from marft.models.policy_registry import PolicyRegistry
from marft.runs.run_folder import RunFolder
from marft.trainer.learner import Learner
from marft.trainer.train import train
from tests.episodes import make_action
from tests.helpers import settings
from tests.nights import some


def learner_of(name: str, tmp_path: Path, *overrides: str) -> Learner:
    algorithm = f"{{ name = '{name}', optimizer = {{ learning_rate = 1e-3 }} }}"
    run = settings("tiny", tmp_path, "--algorithm", algorithm, *overrides)
    return Learner(run, PolicyRegistry(run))


def episode(reward: float, sample: int, *actions: Action, status: Status = "terminated") -> Episode:
    transitions = (Transition(Observation("o"), reward),)
    return Episode(Task("t", "o"), "train/0", sample, actions, status, transitions, success=reward > 0)


def says(agent: str, *tokens: int, sample: int = 0) -> Action:
    return make_action(agent, index=int(agent == "actor"), sample=sample, tokens=tokens or (8, 9))


def snapshot(learner: Learner) -> list[torch.Tensor]:
    return [p for optimizer in learner.optimizers.values() for p in optimizer.snapshot().parameters.values()]


ONE_TOKEN = [episode(float(n % 2), n, says("reasoner", 8, sample=n), says("actor", 9, sample=n)) for n in range(4)]
SILENT_ACTOR = [episode(float(n % 2), n, says("reasoner", 8, 9, sample=n)) for n in range(4)]
ALL_EQUAL = [episode(1.0, n, says("reasoner", sample=n), says("actor", sample=n)) for n in range(4)]
LONE = [episode(1.0, 0, says("reasoner"), says("actor"))]
BATCHES = {"one token": ONE_TOKEN, "silent actor": SILENT_ACTOR, "all equal": ALL_EQUAL, "lone": LONE}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), some(product(sorted(PRESETS), BATCHES), of=13))
def test_every_preset_survives_thin_batches(name: str, kind: str, tmp_path: Path) -> None:
    learner = learner_of(name, tmp_path, "--algorithm.critic.warmup_steps", "0") if PRESETS[name].get("critic") != {
        "kind": "none"
    } else learner_of(name, tmp_path)  # fmt: skip
    batch: Sequence[Episode] = BATCHES[kind]
    if name == "at-grpo":
        batch = [replace(e, fork=Fork("root", e.actions[0].id)) for e in batch]
    metrics = learner.learn(batch, Progress(5, 0))
    assert all(torch.isfinite(p).all() for p in snapshot(learner))
    assert metrics.get("skipped_updates", 0.0) == 0.0
    assert not any(math.isinf(value) for value in metrics.values())


@pytest.mark.parametrize("name", ["grpo", "dr-grpo", "rloo", "dapo", "agent-grpo", "magrpo", "cispo", "reinforce++"])
def test_equal_rewards_move_nothing_and_are_counted(name: str, tmp_path: Path) -> None:
    overrides = ("--algorithm.kl.coefficient", "0") if PRESETS[name].get("kl") else ()
    learner = learner_of(name, tmp_path, *overrides)
    before = snapshot(learner)
    metrics = learner.learn(ALL_EQUAL, Progress(5, 0))
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(learner), strict=True))
    assert metrics["zero_advantage_fraction"] == 1.0
    assert metrics["zero_variance_groups"] == metrics["groups"]


@pytest.mark.parametrize("name", ["grpo", "rloo", "agent-grpo", "magrpo"])
def test_a_lone_member_is_counted_and_not_trained(name: str, tmp_path: Path) -> None:
    overrides = ("--algorithm.kl.coefficient", "0") if PRESETS[name].get("kl") else ()
    learner = learner_of(name, tmp_path, *overrides)
    before = snapshot(learner)
    metrics = learner.learn(LONE, Progress(5, 0))
    assert all(torch.equal(a, b) for a, b in zip(before, snapshot(learner), strict=True))
    assert metrics["singleton_groups"] == metrics["groups"]


def test_an_agent_that_never_acts_moves_nothing_and_shows(tmp_path: Path) -> None:
    learner = learner_of("grpo", tmp_path, "--algorithm.kl.coefficient", "0")
    before = learner.optimizers["actor"].snapshot().parameters.values()
    learner.learn(SILENT_ACTOR, Progress(5, 0))
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, learner.optimizers["actor"].snapshot().parameters.values(), strict=True)
    )
    assert learner.optimizers["actor"].optimizer.state == {}
    assert learner.optimizers["reasoner"].optimizer.state


def test_groups_that_lost_members_compare_those_that_are_left(tmp_path: Path) -> None:
    run = settings(
        "tiny", tmp_path, "--algorithm.name", "grpo", "--rollout.samples_per_task", "5", "--training.steps", "1",
        environment={"name": "tests.plugins:Flaky", "fails": "odd"}, algorithm={},
    )  # fmt: skip
    folder = RunFolder.create(run)
    train(run, folder)
    metrics = folder.read_metrics()[0]
    assert metrics["episodes_dropped"] == 5
    assert metrics["episodes"] == 10
    assert metrics["group_size_min"] < 5
    assert metrics["group_size"] * metrics["groups"] == 5


class TestNotFinite:
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_an_action_without_a_finite_log_prob_loses_its_episode_alone(self, value: float, tmp_path: Path) -> None:
        from tests.marft.agents.test_play import Script, ends, game, run

        class Broken:
            def __init__(self, engine: Any) -> None:
                self.engine, self.external_wait = engine, engine.external_wait

            async def sample(self, *arguments: Any) -> Any:
                completion = await self.engine.sample(*arguments)
                return replace(completion, log_probs=np.full(len(completion.tokens), value, np.float32))

        whole = game(Script([ends()]), "a")
        failed = run(replace(whole, engine=Broken(whole.engine)))
        assert (failed.status, failed.is_scored) == ("failed", False)
        assert "log-prob" in failed.error
        assert run(whole).is_scored

    def test_a_credit_that_gives_nan_is_named(self, tmp_path: Path) -> None:
        learner = learner_of(
            "grpo", tmp_path, "--algorithm.credit", "{ name = 'tests.marft.trainer.test_thin_batches:NaN' }"
        )
        with pytest.raises(
            RunError, match=r"credit 'tests.marft.trainer.test_thin_batches:NaN' gave 0/reasoner/0 .* nan"
        ):
            learner.learn(ALL_EQUAL, Progress(5, 0))

    def test_rewards_that_are_not_finite_fail_the_episode_and_are_counted(self, tmp_path: Path) -> None:
        run = settings(
            "tiny", tmp_path, "--training.steps", "1", environment={"name": "tests.marft.trainer.test_thin_batches:Mad"}
        )
        folder = RunFolder.create(run)
        train(run, folder)
        metrics = folder.read_metrics()[0]
        assert metrics["episodes_failed"] == 2
        assert metrics["episodes"] == 4
        assert metrics["reward"] == 1.0


class NaN(Credit):
    """A credit with a bug."""

    comparison_group: ClassVar[Any] = ""

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        return CreditOutput(inputs.broadcast(np.full(len(inputs.actions), math.nan)))


class Mad(Environment):
    """An environment that now and then rewards infinitely."""

    def tasks(self, split: str) -> list[Task]:
        return [Task("even", "word"), Task("odd", "word word")]

    def start(self, task: Task, seed: int) -> Any:
        from tests.fakes import Script, ends

        return Script([ends(1.0 if task.id == "even" else math.inf)]).start(task, seed)
