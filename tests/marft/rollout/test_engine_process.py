"""An engine in a process of its own, whatever it is that asks it, samples what the in-process engine does, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from marft.agents.game import Attempt
from marft.common.errors import RunError
from marft.common.types import Episode
from marft.common.usage import ENGINE_RESTARTS
from marft.config import RunSettings
from marft.rollout.local_runner import LocalRolloutRunner, open_rollout_runner
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.crews import crew, told
from tests.engine_process import Elsewhere
from tests.helpers import settings
from tests.nights import BY_NIGHT, NIGHT

pytestmark = pytest.mark.slow
ELSEWHERE = ("--engine.kind", "tests.engine_process:Elsewhere")


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    Elsewhere.opened.clear()
    yield
    assert [engine.process.returncode for engine in Elsewhere.opened] == [0] * len(Elsewhere.opened)


def crowd(output: Path, *overrides: str, processes: int = 0) -> RunSettings:
    """Branches, choices, memories and steps that take their time."""
    return crew(
        output, {"name": "tests.crews:Restless"}, *overrides, "--team.organization", "tests.crews:Crowd",
        "--rollout.max_concurrent_episodes", "3", "--engine.max_batch_size", "5", "--agents.reasoner.memory", "own",
        processes=processes,
    )  # fmt: skip


def played(run: RunSettings) -> tuple[list[Episode], dict[str, float]]:
    """Two passes, the second after other weights; and what they took."""
    with open_rollout_runner(run) as rollouts:
        for weights in rollouts.models.policies["actor"].parameters().values():
            weights.data.add_(0.02)
        episodes = []
        for version in (3, 4):
            rollouts.publish(version)
            tasks = run.environment.tasks("train")[:3]  # type: ignore[attr-defined]
            episodes += rollouts.play([Attempt(task, f"train/{version}", n) for task in tasks for n in range(2)])
        return episodes, dict(rollouts.usage())


@pytest.mark.skipif(not NIGHT, reason="a quarter of a minute: make nightly")
def test_branches_choices_and_memories_are_those_of_one_process(tmp_path: Path) -> None:
    """Those that ask are in two more processes: the run's has nothing left but the weights."""
    here, used = played(crowd(tmp_path))
    there, used_there = played(crowd(tmp_path, *ELSEWHERE, processes=2))
    assert len(Elsewhere.opened) == 1
    assert {episode.status for episode in here} == {"terminated"}, here[0].error
    assert any(action.choice for action in here[0].actions)
    assert told(there) == told(here)
    assert used_there["sampled_tokens"] == used["sampled_tokens"] > 0


@BY_NIGHT
def test_a_training_run_is_that_of_one_process(tmp_path: Path) -> None:
    """One policy is an adapter, the other has all its weights sent at every step."""
    rows = []
    for name, option in (("here", ()), ("there", ELSEWHERE)):
        run = settings("tiny", tmp_path, "--name", name, "--policies.actor.train", "full", *option)
        train(run, folder := RunFolder.create(run))
        rows.append([{k: v for k, v in row.items() if "second" not in k} for row in folder.read_metrics()])
    assert rows[1] == rows[0]
    assert Elsewhere.opened[0].version("actor") == 2


def test_an_engine_that_is_gone_ends_the_run(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path, *ELSEWHERE)
    with LocalRolloutRunner(run) as rollouts:
        rollouts.publish(0)
        Elsewhere.opened[0].process.kill()
        Elsewhere.opened[0].process.wait()
        with pytest.raises(RunError, match="the engine's process has ended"):
            rollouts.play([Attempt(run.environment.tasks("train")[0], "train/0")])  # type: ignore[attr-defined]
    Elsewhere.opened.clear()


def test_restarts_between_two_samplings_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the learner learns nobody samples; an engine that ends then has ended all the same."""
    counts = iter([0.0] * 2 + [1.0] * 2 + [3.0] * 99)
    monkeypatch.setattr("marft.trainer.loop.count_failures", lambda _: {ENGINE_RESTARTS: next(counts)})
    monkeypatch.setattr(LocalRolloutRunner, "usage", lambda self: {**self.engine.usage(), ENGINE_RESTARTS: 7.0})
    train(run := settings("tiny", tmp_path, "--training.steps", "4"), folder := RunFolder.create(run))
    assert [row[ENGINE_RESTARTS] for row in folder.read_metrics()] == [0.0, 1.0, 0.0, 2.0]
