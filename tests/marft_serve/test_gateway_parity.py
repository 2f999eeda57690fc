"""A team that is somebody else's program samples and learns what the same team does in our words, to the last bit."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from marft.common.types import Episode
from marft.config import load_recipe
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.nights import BY_NIGHT

pytest.importorskip("openai", reason="needs openai: pip install 'marft[remote]'")
pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")

PLAIN = "{ organization = 'program', call = 'marft_serve.examples.openai_team:solve' }"
STREAMING = "{ organization = 'program', call = 'tests.streaming_team:solve' }"
TIMES = ("second", "gateway/idle_timeouts", "workers_lost", "episodes_retried", "tasks_excluded")


def trained(output: Path, steps: int, *changes: str) -> RunFolder:
    run = load_recipe(
        "demo", ["--output", str(output), "--device", "cpu", "--threads", "1", "--checkpoints.every", str(steps),
                 "--training.steps", str(steps), "--rollout.tasks_per_step", "3", *changes],
    )  # fmt: skip
    folder = RunFolder.create(run)
    assert train(run, folder).step == steps
    return folder


def sampled(folder: RunFolder) -> list[Episode]:
    return [episode for path in sorted(folder.episodes.iterdir()) for episode in read_episodes(path)]


def compare(native: RunFolder, plain: RunFolder, steps: int) -> None:
    for one, other in zip(sampled(native), sampled(plain), strict=True):
        assert other.status == "terminated", other.error
        assert (other.total_reward, other.success) == (one.total_reward, one.success)
        for mine, theirs in zip(one.actions, other.actions, strict=True):
            assert (theirs.key, theirs.sees, theirs.message_tokens) == (mine.key, mine.sees, mine.message_tokens)
            for name in ("prompt", "tokens", "log_probs"):
                assert np.array_equal(getattr(theirs, name), getattr(mine, name)), name
    rows = [folder.read_metrics() for folder in (native, plain)]
    timeless = [[{k: v for k, v in row.items() if not any(t in k for t in TIMES)} for row in each] for each in rows]
    assert timeless[1] == timeless[0]
    assert [row.get("gateway/idle_timeouts", 0.0) for row in rows[1]] == [0.0] * steps
    for file in ("critic.safetensors", "policies/actor/adapter_model.safetensors"):
        paths = [folder.checkpoints / f"step_{steps:06d}" / file for folder in (native, plain)]
        assert paths[0].read_bytes() == paths[1].read_bytes()


@BY_NIGHT
@pytest.mark.slow
def test_a_plain_openai_program_gives_the_tokens_and_losses_of_the_chain(tmp_path: Path) -> None:
    compare(trained(tmp_path / "native", 5), trained(tmp_path / "plain", 5, "--team", PLAIN), 5)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "nightly", reason="a quarter of a minute: make nightly")
def test_also_where_it_is_played_in_processes_of_its_own(tmp_path: Path) -> None:
    short = "--algorithm.critic.warmup_steps", "0"
    plain = trained(tmp_path / "plain", 1, "--team", PLAIN, "--rollout.workers", "2", *short)
    native = trained(tmp_path / "native", 1, *short)
    compare(native, plain, 1)
    for processes in ("0", "2"):  # and where what is said is read while it is said
        options = ("--team", STREAMING, "--rollout.workers", processes, *short)
        compare(native, trained(tmp_path / f"streaming{processes}", 1, *options), 1)
