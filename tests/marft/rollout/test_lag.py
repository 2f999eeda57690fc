"""Asynchronous training with an engine of its own: whole runs, stopped and gone on, killed and cancelled."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from marft.common.callbacks import Callback
from marft.common.types import Episode
from marft.config import RunSettings
from marft.rollout.async_rollout.sources import AsyncRolloutSource
from marft.runs.episode_files import read_episodes, read_rows
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.crews import told
from tests.helpers import settings
from tests.marft.inference.test_local_server import servers
from tests.nights import BY_NIGHT, NIGHT

pytestmark = pytest.mark.slow
STEPS = 5


def run_of(output: Path, lag: int, *overrides: str, steps: int = STEPS) -> RunSettings:
    return settings(
        "tiny", output, "--engine.kind", "process", "--engine.threads", "1", "--rollout.max_policy_lag", str(lag),
        "--training.steps", str(steps), *overrides, environment={"name": "tests.crews:Restless"},
    )  # fmt: skip


def recorded(folder: RunFolder) -> list[list[Episode]]:
    return [read_episodes(path) for path in sorted(folder.episodes.glob("*.parquet"))]


def names(steps: list[list[Episode]]) -> list[list[str]]:
    return [[episode.name for episode in step] for step in steps]


class At(Callback):
    """Does something after a step, once."""

    def __init__(self, at: int, do: Any) -> None:
        self.at, self.do = at, do

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        if step == self.at:
            self.do()

    def wants_stop(self) -> bool:
        return getattr(self, "stop", False)


@BY_NIGHT
def test_no_action_is_too_old_and_a_killed_engine_loses_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, 2)
    train(run, folder := RunFolder.create(run), callbacks=[At(2, lambda: os.kill(servers()[0], signal.SIGKILL))])
    rows = folder.read_metrics()
    assert sum(row["engine_restarts"] for row in rows) == 1
    assert {row["episodes_dropped"] for row in rows} == {0.0}
    assert rows[0]["policy_lag_max"] == 0
    assert 1 <= max(row["policy_lag_max"] for row in rows) <= 2
    assert {row["async/groups_dropped"] for row in rows} == {0.0}
    assert all(0 < row["ess"] <= 1 + 1e-9 for row in rows)
    for step, episodes in enumerate(recorded(folder)):
        versions = [action.versions for episode in episodes for action in episode.actions]
        assert all(step - 2 <= found.lowest <= found.highest <= step for found in versions)
    assert not servers()


@pytest.mark.skipif(not NIGHT, reason="a tenth of a minute: make nightly")
def test_what_a_step_learns_from_has_the_keys_of_a_synchronous_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With lag 0 the buffer has nothing to do, and what comes through it is what comes without."""
    steps = []
    for name, through in (("with", True), ("without", False)):
        if through:
            monkeypatch.setattr("marft.trainer.train.open_source", AsyncRolloutSource)
        run = run_of(tmp_path, 0, "--name", name, steps=3)
        train(run, folder := RunFolder.create(run))
        monkeypatch.undo()
        steps.append(recorded(folder))
    assert names(steps[0]) == names(steps[1])
    for one, other in zip(*steps, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert [a.tokens.tolist() for a in mine.actions] == [a.tokens.tolist() for a in theirs.actions]
            assert [a.versions for a in mine.actions] == [a.versions for a in theirs.actions]


@pytest.mark.skipif(not NIGHT, reason="a fifth of a minute: make nightly")
def test_a_run_that_goes_on_learns_from_what_had_been_played(tmp_path: Path) -> None:
    """Nothing twice, and nothing left out."""
    run = run_of(tmp_path, 1, "--rollout.reuse", "2")
    stopping = At(3, lambda: (time.sleep(2.0), setattr(stopping, "stop", True)))  # until the next groups were played
    train(run, folder := RunFolder.create(run), callbacks=[stopping])
    waiting = read_episodes(folder.checkpoints / "step_000003" / "ahead.parquet")
    assert len(waiting) == 8  # of two steps: that of the policy itself, and one ahead
    train(run, folder, resume=True)
    steps = recorded(folder)
    straight = [[f"train/{step} restless" for _ in range(4)] for step in range(STEPS)]
    assert [[name.rpartition("/")[0] for name in step] for step in names(steps)] == straight
    assert len({name for step in names(steps) for name in step}) == 4 * STEPS
    by_name = {episode.name: episode for episode in (*steps[3], *steps[4])}
    assert told(waiting) == told([by_name[episode.name] for episode in waiting])
    rows = folder.read_metrics()
    assert [row["reused_episodes"] for row in rows] == [0.0, 4.0, 4.0, 4.0, 4.0]
    assert max(row["policy_lag_max"] for row in rows) <= 2


@BY_NIGHT
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    run = run_of(tmp_path, 2, steps=50)
    with pytest.raises(KeyboardInterrupt):
        train(run, RunFolder.create(run), callbacks=[At(2, interrupt)])
    assert not servers()
    assert not list(Path("/dev/shm").glob(f"marft-weights-{os.getpid()}-*"))


@pytest.mark.skipif(not NIGHT, reason="a quarter of a minute: make nightly")
@pytest.mark.parametrize(
    "overrides",
    [
        ("--rollout.workers", "2"),
        ("--algorithm", "{name = 'coma'}"),
        ("--algorithm", "{name = 'dapo'}"),
        ("--policies.actor.train", "full"),
    ],
)
def test_workers_forks_and_groups_that_are_drawn_again_go_on_ahead(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    run = run_of(tmp_path, 2, *overrides, "--evaluation.every", "2", "--evaluation.validation_tasks", "2")
    train(run, folder := RunFolder.create(run))
    rows = folder.read_metrics()
    assert max(row["policy_lag_max"] for row in rows) <= 2
    assert {row["episodes_dropped"] for row in rows} == {0.0}
    assert {row.get("forks_failed", 0.0) for row in rows} == {0.0}


@BY_NIGHT
def test_learning_again_survives_a_stop_to_the_bit(tmp_path: Path) -> None:
    """In process and without a lag a run with reuse is the same whether it was stopped or not."""
    weights, rows = [], []
    for name in ("straight", "stopped"):
        run = settings(
            "tiny", tmp_path, "--name", name, "--rollout.reuse", "3", "--training.steps", "5", "--checkpoints.every",
            "2", environment={"name": "tests.crews:Restless"},
        )  # fmt: skip
        folder = RunFolder.create(run)
        if name == "stopped":
            stopping = At(3, lambda: setattr(stopping, "stop", True))  # noqa: B023
            train(run, folder, callbacks=[stopping])
            assert (folder.checkpoints / "step_000003" / "again.parquet").is_file()
        train(run, folder, resume=name == "stopped")
        path = folder.checkpoints / "step_000005" / "policies" / "actor" / "adapter_model.safetensors"
        weights.append({key: value.tobytes() for key, value in load_file(path).items()})
        assert any(np.frombuffer(value, np.float32).any() for key, value in weights[0].items() if "lora_B" in key)
        timeless = [{k: v for k, v in row.items() if "second" not in k} for row in folder.read_metrics()]
        rows.append([{k: v for k, v in row.items() if v == v} for row in timeless])
    assert weights[0] == weights[1]
    assert rows[0] == rows[1]
    assert len({row["policy"] for row in read_rows(folder.episodes / "step_000005.parquet")}) == 2
    assert min(row["ess"] for row in rows[0]) < 1.0
