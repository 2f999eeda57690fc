"""A schedule whose phases ask for new episodes: the team plays again with the policies as updated so far."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from marft.common.callbacks import Callback
from marft.common.errors import RunError
from marft.common.types import Episode
from marft.config import RunSettings
from marft.rollout.runner import RolloutRunner
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.helpers import settings
from tests.marft.trainer.test_ranks_runs import weights
from tests.runs import Listening

AGAIN = "tests.plugins:PlayAgain"
ONE_TURN = "tests.plugins:FirstPolicyAlone"


def run_of(output: Path, schedule: str, *overrides: str) -> RunSettings:
    return settings(
        "tiny",
        output,
        "--training.steps",
        "1",
        "--algorithm.optimizer.learning_rate",
        "1e-3",
        "--algorithm.schedule.name",
        schedule,
        *overrides,
        environment={"name": "tests.plugins:Flaky", "alternates": True},
    )


def trained(run: RunSettings) -> tuple[RunFolder, Listening]:
    folder, listening = RunFolder.create(run), Listening()
    train(run, folder, callbacks=[listening])
    return folder, listening


def test_the_second_phase_learns_from_episodes_of_its_own(tmp_path: Path) -> None:
    again, _ = trained(run_of(tmp_path / "again", AGAIN))
    alone, _ = trained(run_of(tmp_path / "alone", ONE_TURN))
    first, rest = (name for name in ("reasoner", "actor"))
    mine, other = weights(again, 1), weights(alone, 1)
    of_first = {name for name in mine if first in name and "policies" in name}
    assert of_first
    assert all(mine[name].tobytes() == other[name].tobytes() for name in of_first), "the first phase is as ever"
    assert any(mine[name].tobytes() != other[name].tobytes() for name in other if rest in name)

    episodes = read_episodes(again.find_recorded(1))
    streams = [episode.stream for episode in episodes]
    half = len(episodes) // 2
    assert streams == ["train/0"] * half + ["train/0/repeat-1"] * half
    assert [e.task.id for e in episodes[:half]] == [e.task.id for e in episodes[half:]], "the same tasks"
    row, once = again.read_metrics()[0], alone.read_metrics()[0]
    assert row["sampled_actions"] == 2 * once["sampled_actions"]
    assert row["environment_steps"] == 2 * once["environment_steps"]
    assert row["seconds"] == pytest.approx(sum(v for k, v in row.items() if k.startswith("seconds/")))


def test_the_policies_are_published_before_the_team_plays_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, publish = list[str](), RolloutRunner.publish

    def recorded(self: RolloutRunner, version: int) -> None:
        events.append(f"publish {version}")
        publish(self, version)

    class Watching(Callback):
        def on_episode(self, episode: Episode) -> None:
            events.append(episode.stream)

    monkeypatch.setattr(RolloutRunner, "publish", recorded)
    run = run_of(tmp_path, AGAIN)
    train(run, RunFolder.create(run), callbacks=[Watching()])
    assert [event for event, _ in groupby(events)] == [
        "publish 0", "train/0", "publish 0", "train/0/repeat-1", "publish 1"
    ]  # fmt: skip


def test_episodes_that_are_not_played_on_request_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="asks for new episodes within a step"):
        trained(run_of(tmp_path, AGAIN, "--rollout.reuse", "2"))


def test_ranks_learn_the_same_from_them(tmp_path: Path) -> None:
    one, _ = trained(run_of(tmp_path / "one", AGAIN, "--algorithm.optimizer.epsilon", "1e-4"))
    two, _ = trained(run_of(tmp_path / "two", AGAIN, "--algorithm.optimizer.epsilon", "1e-4", "--training.ranks", "2"))
    mine, right = weights(two, 1), weights(one, 1)
    assert mine.keys() == right.keys()
    for name, tensor in right.items():
        np.testing.assert_allclose(mine[name], tensor, atol=2e-5, err_msg=name)
    assert len(read_episodes(two.find_recorded(1))) == len(read_episodes(one.find_recorded(1)))
