"""A run that stops and goes on equals one that never stopped, bit for bit, however it was stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from marft.common.callbacks import Callback
from marft.config import to_toml
from marft.runs.checkpoints import CheckpointManager
from marft.runs.episode_files import read_rows
from marft.runs.run_folder import RunFolder
from marft.runs.state import State, verify
from marft.trainer.train import train
from tests.helpers import settings
from tests.nights import BY_NIGHT, NIGHT
from tests.sources import ROOT

STEPS = 10


class StopAfter(Callback):
    def __init__(self, step: int) -> None:
        self.last, self.now = step, 0

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        self.now = step

    def wants_stop(self) -> bool:
        return self.now >= self.last


def run_settings(output: Path, *overrides: str) -> Any:
    return settings(
        "tiny", output, "--training.steps", str(STEPS), "--checkpoints.every", "5", "--algorithm.level", "token",
        "--algorithm.optimizer.schedule", "cosine", "--algorithm.optimizer.warmup_steps", "2",
        "--algorithm.schedule", "{name = 'agent-by-agent', interval = 5}", "--evaluation.every", "5",
        "--evaluation.validation_tasks", "4", "--agents.actor.sampling.max_new_tokens", "32",
        "--agents.reasoner.sampling.max_new_tokens", "32", "--algorithm.entropy_coefficient", "0.01", *overrides,
    )  # fmt: skip


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = run_settings(tmp_path_factory.mktemp("straight"))
    folder = RunFolder.create(run)
    train(run, folder)
    for policy in ("reasoner", "actor"):
        weights = load_file(folder.checkpoints / "step_000010" / "policies" / policy / "adapter_model.safetensors")
        assert any(np.abs(w).max() > 0 for name, w in weights.items() if "lora_B" in name), (
            "nothing was learned to lose"
        )
    return folder


def assert_same(folder: RunFolder, straight: RunFolder, step: str = "step_000010") -> None:
    mine, theirs = folder.checkpoints / step, straight.checkpoints / step
    names = sorted(str(p.relative_to(theirs)) for p in theirs.rglob("*.safetensors"))
    assert names == sorted(str(p.relative_to(mine)) for p in mine.rglob("*.safetensors"))
    assert any("optimizer" in name for name in names)
    for name in names:
        a, b = load_file(mine / name), load_file(theirs / name)
        assert a.keys() == b.keys()
        for key in a:
            assert a[key].tobytes() == b[key].tobytes(), (name, key)
    assert verify(mine) == verify(theirs)
    for a_row, b_row in zip(folder.read_metrics(), straight.read_metrics(), strict=True):
        timeless = {k for k in b_row if "second" not in k}
        assert {k: a_row[k] for k in timeless} == {k: b_row[k] for k in timeless}
    for path in sorted(straight.episodes.glob("*.parquet")):
        for a, b in zip(read_rows(folder.episodes / path.name), read_rows(path), strict=True):
            assert (a["tokens"], a["versions"]) == (b["tokens"], b["versions"])
            assert np.array(a["log_probs"]).tobytes() == np.array(b["log_probs"]).tobytes()


@BY_NIGHT
@pytest.mark.slow
def test_the_same_run_twice_is_the_same(straight: RunFolder, tmp_path: Path) -> None:
    run = run_settings(tmp_path)
    folder = RunFolder.create(run)
    train(run, folder)
    assert_same(folder, straight)


@pytest.mark.slow
def test_stopping_and_going_on_changes_nothing(straight: RunFolder, tmp_path: Path) -> None:
    run = run_settings(tmp_path)
    folder = RunFolder.create(run)
    state = train(run, folder, callbacks=[StopAfter(4)])
    assert state.step == 4
    assert train(run, folder, resume=True).step == STEPS
    assert_same(folder, straight)


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "marft.cli.main", "train", str(folder), *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="while one is written is asked by day: make nightly")
def test_kill_9_between_checkpoints_loses_only_the_steps_since_the_last(straight: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(to_toml(run_settings(tmp_path)))
    process = subprocess.Popen(
        command(tmp_path / "recipe.toml"), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL
    )
    folder = RunFolder(tmp_path / "test")
    deadline = time.monotonic() + 120
    while len(folder.read_metrics()) < 7 and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(ValueError, match=f"is at work: process {process.pid} on"), folder.acquire_lock():
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert str(process.pid) in (folder.path / "run.lock").read_text()  # which keeps nobody from going on
    assert (folder.checkpoints / "step_000005").is_dir()
    assert not (folder.checkpoints / "step_000010").exists()
    done = subprocess.run(
        command(folder.path, "--resume"), cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert_same(folder, straight)


@BY_NIGHT
@pytest.mark.slow
def test_kill_9_while_a_checkpoint_is_written_leaves_the_one_before_whole(straight: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(to_toml(run_settings(tmp_path)))
    script = f"""
        import os, signal
        import safetensors.torch
        from marft.trainer.train import train  # whose adapters are written as ever
        save, calls = safetensors.torch.save_file, []
        def dying(tensors, path, **options):
            calls.append(path)
            if len(calls) == 4:  # the optimizer of the second checkpoint
                path.write_bytes(b"half a file")
                os.kill(os.getpid(), signal.SIGKILL)
            save(tensors, path, **options)
        safetensors.torch.save_file = dying
        from marft.config import load_recipe
        from marft.runs.run_folder import RunFolder
        run = load_recipe({str(tmp_path / "recipe.toml")!r})
        train(run, RunFolder.create(run))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, env=environment(), check=False)
    assert done.returncode == -signal.SIGKILL
    folder = RunFolder(tmp_path / "test")
    assert [path.name for path in CheckpointManager(folder, run_settings(tmp_path).checkpoints).steps()] == [
        "step_000005"
    ]
    assert list(folder.checkpoints.glob(".unfinished-*"))
    assert train(run_settings(tmp_path), folder, resume=True).step == STEPS
    assert not list(folder.checkpoints.glob(".unfinished-*"))
    assert_same(folder, straight)


@BY_NIGHT
@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_and_said(straight: RunFolder, tmp_path: Path) -> None:
    run = run_settings(tmp_path)
    folder = RunFolder.create(run)
    train(run, folder)
    newest = folder.checkpoints / "step_000010"
    weights = newest / "policies" / "actor" / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    notes: list[str] = []

    class Listening(Callback):
        def on_note(self, text: str) -> None:
            notes.append(text)

    train(run, folder, resume=True, callbacks=[Listening()])
    assert len(notes) == 1
    assert "step_000010" in notes[0]
    assert "adapter_model.safetensors is damaged" in notes[0]
    assert_same(folder, straight)


def test_without_a_whole_checkpoint_resuming_says_so_and_deletes_nothing(tmp_path: Path) -> None:
    run = run_settings(tmp_path, "--training.steps", "1")
    folder = RunFolder.create(run)
    train(run, folder)
    state = folder.checkpoints / "step_000001" / "state.json"
    state.write_text(state.read_text()[:-9])
    with pytest.raises(ValueError, match="no checkpoint can be read"):
        train(run, folder, resume=True)
    assert state.exists()


@BY_NIGHT
@pytest.mark.slow
def test_a_resumed_policy_still_trains(tmp_path: Path) -> None:
    """Adapters once came back as not trainable, with an empty optimizer."""
    first = run_settings(tmp_path, "--training.steps", "5")
    folder = RunFolder.create(first)
    train(first, folder)
    before = load_file(folder.checkpoints / "step_000005" / "policies" / "reasoner" / "adapter_model.safetensors")
    train(run_settings(tmp_path), folder, resume=True)
    after = load_file(folder.checkpoints / "step_000010" / "policies" / "reasoner" / "adapter_model.safetensors")
    assert any(not np.array_equal(before[key], after[key]) for key in before)


@pytest.mark.slow
def test_a_new_run_starts_from_the_weights_of_an_old_one(straight: RunFolder, tmp_path: Path) -> None:
    source = straight.checkpoints / "step_000010"
    run = run_settings(
        tmp_path, "--training.steps", "2", "--algorithm.critic.warmup_steps", "1", "--checkpoints.every", "1"
    )  # policies stay as they are in the first step
    folder = RunFolder.create(run)
    train(run, folder, start_from=source)
    for policy in ("reasoner", "actor"):
        a = load_file(folder.checkpoints / "step_000001" / "policies" / policy / "adapter_model.safetensors")
        b = load_file(source / "policies" / policy / "adapter_model.safetensors")
        assert all(np.array_equal(a[key], b[key]) for key in b)
    assert verify(folder.checkpoints / "step_000001").step == 1


@pytest.mark.slow
def test_old_checkpoints_go_and_the_best_and_the_last_stay(tmp_path: Path) -> None:
    run = run_settings(
        tmp_path, "--checkpoints.every", "1", "--training.steps", "4", "--checkpoints.keep_last", "2",
        "--evaluation.every", "0",
    )  # fmt: skip
    folder = RunFolder.create(run)
    train(run, folder)
    steps = {path.name for path in CheckpointManager(folder, run.checkpoints).steps()}
    best = verify(folder.checkpoints / "step_000004").best_step
    assert {"step_000003", "step_000004", f"step_{best:06d}"} == steps
    assert CheckpointManager(folder, run.checkpoints).find("best").name == f"step_{best:06d}"


def test_state_is_plain_json(straight: RunFolder) -> None:
    table = json.loads((straight.checkpoints / "step_000010" / "state.json").read_text())
    about = {"files", "log", "models", "code", "version", "digest"}
    assert State(**{key: value for key, value in table.items() if key not in about}).step == STEPS
    assert not list(straight.path.rglob("*.pt"))
    assert not list(straight.path.rglob("*.pkl"))
