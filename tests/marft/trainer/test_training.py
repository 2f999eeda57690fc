"""Whole training steps with the bundled model: what is logged, what learns, what stays as it is."""

from __future__ import annotations

import errno
import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file

from marft.common import atomic
from marft.common.callbacks import Callback
from marft.common.errors import RunError
from marft.config import load_recipe
from marft.config.interfaces.credit import flatten_actions
from marft.config.interfaces.schedule import Progress
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.rollout_batch import load_training_tasks, sample_attempts
from marft.runs import checkpoints
from marft.runs.checkpoints import CheckpointManager
from marft.runs.episode_files import read_rows
from marft.runs.run_folder import RunFolder
from marft.trainer.learner import Learner
from marft.trainer.train import train
from tests.helpers import settings
from tests.nights import BY_NIGHT

LONG = ("--agents.actor.sampling.max_new_tokens", "32", "--agents.reasoner.sampling.max_new_tokens", "32")


def trained(tmp_path: Path, *overrides: str, **changes: Any) -> RunFolder:
    run = settings("tiny", tmp_path, *LONG, *overrides, **changes)
    folder = RunFolder.create(run)
    train(run, folder)
    return folder


def adapter(folder: RunFolder, policy: str, step: int = 2) -> dict[str, torch.Tensor]:
    return load_file(folder.checkpoints / f"step_{step:06d}" / "policies" / policy / "adapter_model.safetensors")


def moved(folder: RunFolder, policy: str) -> bool:
    return any(tensor.abs().max() > 0 for name, tensor in adapter(folder, policy).items() if "lora_B" in name)


TEAM_METRICS = (
    "reward", "reward_std", "accuracy", "zero_advantage_fraction", "episodes", "episodes_dropped", "episodes_failed",
    "episodes_timed_out", "action_length", "truncation_rate", "entropy", "kl", "kl_to_base", "clip_fraction", "kl_stops",
    "log_prob_difference", "log_prob_difference_max", "policy_lag", "gradient_norm", "policy_loss", "critic/loss",
    "critic/explained_variance", "tokens_per_second/sampling", "tokens_per_second/learning", "seconds/sampling", "seconds/learning",
)  # fmt: skip
AGENT_METRICS = (
    "action_length", "truncation_rate", "entropy", "kl", "kl_to_base", "clip_fraction", "log_prob_difference",
    "log_prob_difference_max", "policy_lag", "gradient_share", "zero_advantage_fraction", "truncated_tokens",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("level", ["action", "token"])
def test_every_metric_is_logged_for_the_team_and_each_agent(tmp_path: Path, level: str) -> None:
    folder = trained(
        tmp_path, "--algorithm.level", level, environment={"name": "tests.plugins:Flaky", "alternates": True}
    )
    rows = folder.read_metrics()
    assert [row["step"] for row in rows] == [1, 2]
    names = [*TEAM_METRICS, *(f"agents/{role}/{metric}" for role in ("reasoner", "actor") for metric in AGENT_METRICS)]
    missing = [name for name in names if name not in rows[-1]]
    assert not missing
    assert rows[-1]["agents/reasoner/gradient_share"] + rows[-1]["agents/actor/gradient_share"] == pytest.approx(1.0)
    assert list((folder.path / "tensorboard").glob("events*"))


@BY_NIGHT
@pytest.mark.slow
def test_engine_and_learner_agree_over_a_full_demo_step() -> None:
    """Largest difference below 1e-5 nats in float32, over every token of 64 episodes of the shipped demo."""
    run = load_recipe("demo", ["--algorithm.critic.warmup_steps", "0"])
    with LocalRolloutRunner(run) as rollouts:
        learner = Learner(run, rollouts.models)
        episodes = rollouts.play(sample_attempts(run, load_training_tasks(run), 0, 0, 16))
        metrics = learner.learn(episodes, Progress(0, 0))
        assert sum(len(action.tokens) for action in flatten_actions(episodes)) > 1500
        assert metrics["log_prob_difference_max"] < 1e-5
        assert metrics["log_prob_difference"] < 1e-6


def test_only_policies_in_training_move(tmp_path: Path) -> None:
    folder = trained(tmp_path, "--policies.actor.train", "frozen", "--algorithm.entropy_coefficient", "0.1")
    assert moved(folder, "reasoner")
    assert not (folder.checkpoints / "step_000002" / "policies" / "actor").exists()


@pytest.mark.slow
def test_agents_may_share_one_policy(tmp_path: Path) -> None:
    sharing = ("--agents.reasoner.policy", "both", "--agents.actor.policy", "both", "--algorithm.kl_stop", "0.0")
    environment = {"name": "tests.plugins:Flaky", "alternates": True}
    run = settings("tiny", tmp_path, *LONG, *sharing, policies={"both": {"model": "base"}}, environment=environment)
    folder = RunFolder.create(run)
    train(run, folder)
    assert moved(folder, "both")
    row = folder.read_metrics()[-1]
    assert 0 < row["agents/reasoner/gradient_share"] < 1


@pytest.mark.slow
def test_full_fine_tuning_owns_its_copy_and_leaves_the_base_alone(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path, "--policies.actor.train", "full", "--algorithm.entropy_coefficient", "0.1", *LONG)
    folder = RunFolder.create(run)
    train(run, folder)
    saved = folder.checkpoints / "step_000002" / "policies" / "actor"
    weights = load_file(saved / "model.safetensors")
    with LocalRolloutRunner(run) as rollouts:
        base = rollouts.models.base_models["base"].base_weights()
        changed = [name for name, tensor in weights.items() if not torch.equal(tensor, base.get(name, tensor))]
        assert len(changed) > 5
        rollouts.models.load_policy("actor", saved)
        own = rollouts.models.policies["actor"].backbone.model.state_dict()
        assert all(torch.equal(own[name], tensor) for name, tensor in weights.items())
        rollouts.models.reset_policy("actor")
        assert torch.equal(own["model.norm.weight"], base["model.norm.weight"])


@pytest.mark.slow
def test_a_policy_can_start_from_a_peft_adapter(tmp_path: Path) -> None:
    first = trained(tmp_path / "a", "--algorithm.entropy_coefficient", "0.1")
    source = first.checkpoints / "step_000002" / "policies" / "actor"
    run = settings("tiny", tmp_path / "b", "--policies.actor.adapter", str(source))
    with LocalRolloutRunner(run) as rollouts:
        mine = rollouts.models.policies["actor"].parameters()
        saved = adapter(first, "actor")
        name = "model.layers.0.self_attn.q_proj"
        assert torch.equal(mine[f"{name}.lora_B"], saved[f"base_model.model.{name}.lora_B.weight"])


@pytest.mark.slow
def test_the_critic_warms_up_before_any_policy_step(tmp_path: Path) -> None:
    folder = trained(
        tmp_path, "--algorithm.critic.warmup_steps", "2", "--algorithm.entropy_coefficient", "0.1", "--training.steps", "3"
    )  # fmt: skip
    rows = folder.read_metrics()
    assert ["policy_loss" in row for row in rows] == [False, False, True]
    assert all(row["critic/loss"] is not None for row in rows)
    b = load_file(folder.checkpoints / "step_000002" / "policies" / "reasoner" / "adapter_model.safetensors")
    assert all(t.abs().max() == 0 for key, t in b.items() if "lora_B" in key)


@BY_NIGHT
@pytest.mark.slow
def test_learning_rates_follow_their_schedule(tmp_path: Path) -> None:
    folder = trained(
        tmp_path, "--training.steps", "4", "--algorithm.optimizer.schedule", "linear", "--algorithm.optimizer.warmup_steps", "2",
        "--policies.actor.learning_rate", "0.5", "--algorithm.kl_stop", "0.0",
    )  # fmt: skip
    rows = folder.read_metrics()
    assert [row["policies/actor/learning_rate"] for row in rows] == pytest.approx([0.25, 0.5, 0.5, 0.25])
    assert [row["policies/reasoner/learning_rate"] for row in rows] == pytest.approx([0.005, 0.01, 0.01, 0.005])


def test_tasks_come_in_an_endless_reshuffled_pass() -> None:
    run = settings("tiny", "runs", "--rollout.tasks_per_step", "10")
    tasks = load_training_tasks(run)
    passes = [
        [a.task.id for step in range(32) for a in sample_attempts(run, tasks, step, 10 * step, 10) if a.sample == 0]
    ]
    first, second = passes[0][:64], passes[0][64:128]
    assert sorted(first) == sorted(second) == sorted(t.id for t in tasks)
    assert first != second
    attempts = sample_attempts(run, tasks, 3, 30, 10)
    assert [a.sample for a in attempts[:2]] == [0, 1]
    assert attempts[0].task == attempts[1].task


class TestWhatGoesWrong:
    def test_episodes_that_cannot_be_scored_leave_the_batch_and_are_counted(self, tmp_path: Path) -> None:
        """They are never trained as a reward of 0."""
        folder = trained(tmp_path, environment={"name": "tests.plugins:Flaky", "fails": "odd"})
        row = folder.read_metrics()[0]
        assert (row["episodes"], row["episodes_dropped"], row["episodes_failed"]) == (4.0, 2.0, 2.0)
        assert row["reward"] == 1.0
        errors = {r["error"] for r in read_rows(folder.episodes / "step_000001.parquet") if r["status"] == "failed"}
        assert any("RuntimeError: the world ends" in error for error in errors)

    def test_when_nothing_can_be_scored_the_run_stops_with_the_reason(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=r"step 1: none of 4 episodes could be scored; .*the world ends"):
            trained(tmp_path, environment={"name": "tests.plugins:Flaky", "fails": "all"})

    @BY_NIGHT
    @pytest.mark.slow
    def test_a_prompt_longer_than_the_context_is_cut_and_counted(self, tmp_path: Path) -> None:
        folder = trained(tmp_path, environment={"name": "tests.plugins:Flaky", "words": 2000})
        assert folder.read_metrics()[0]["truncated_tokens"] > 1000

    def test_where_nothing_may_be_cut_the_run_says_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=r"raise the model's context"):
            trained(
                tmp_path,
                "--agents.reasoner.context.truncate",
                "none",
                environment={"name": "tests.plugins:Flaky", "words": 2000},
            )

    def test_an_action_that_leaves_no_room_for_a_prompt_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="max_new_tokens = 5000 leaves no room"):
            trained(tmp_path, "--agents.actor.sampling.max_new_tokens", "5000")

    def test_an_empty_generation_is_an_action_of_one_token(self, tmp_path: Path) -> None:
        folder = trained(tmp_path, "--agents.actor.sampling.max_new_tokens", "1")
        assert folder.read_metrics()[0]["agents/actor/action_length"] == 1.0

    @pytest.mark.slow
    def test_a_team_that_is_all_frozen_has_nothing_to_train(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="nothing to train"):
            trained(tmp_path, "--policies.actor.train", "frozen", "--policies.reasoner.train", "frozen")

    def test_an_environment_without_tasks(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="training split has no tasks"):
            trained(tmp_path, environment={"name": "tests.plugins:Flaky", "count": 0})

    @pytest.mark.slow
    def test_a_full_disk_loses_nothing_that_was_saved(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        save = safetensors.torch.save_file
        calls = []

        def full(tensors: Any, path: Path, **options: Any) -> None:
            calls.append(path)
            if len(calls) > 4:
                path.write_bytes(b"some")
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            save(tensors, path, **options)

        monkeypatch.setattr(safetensors.torch, "save_file", full)
        run = settings("tiny", tmp_path, "--training.steps", "4")
        folder = RunFolder.create(run)
        with pytest.raises(OSError, match="No space left"):
            train(run, folder)
        steps = CheckpointManager(folder, run.checkpoints).steps()
        assert [path.name for path in steps] == ["step_000001", "step_000002"]
        assert checkpoints.verify(steps[-1]).step == 2
        assert not list(folder.checkpoints.glob(".unfinished-*"))
        monkeypatch.undo()
        assert train(run, folder, resume=True).step == 4

    def test_a_failed_write_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "file.json"
        atomic.write_file(path, "old")
        monkeypatch.setattr(atomic.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            atomic.write_file(path, "new")
        assert path.read_text() == "old"
        assert [p.name for p in tmp_path.iterdir()] == ["file.json"]

    def test_a_loss_that_is_not_finite_moves_nothing_and_is_counted(self, tmp_path: Path) -> None:
        run = settings(
            "tiny", tmp_path, "--algorithm.objective", "{name = 'tests.plugins:NotANumber'}", "--training.steps", "1"
        )
        folder = RunFolder.create(run)
        train(run, folder)
        assert folder.read_metrics()[0]["skipped_updates"] == 1.0
        assert not any(t.isnan().any() for t in adapter(folder, "actor", 1).values())


@BY_NIGHT
@pytest.mark.slow
def test_several_environment_steps_are_trained(tmp_path: Path) -> None:
    folder = trained(
        tmp_path, "--algorithm.entropy_coefficient", "0.1", environment={"name": "tests.plugins:Flaky", "steps": 3}
    )
    rows = read_rows(folder.episodes / "step_000001.parquet")
    assert {row["step"] for row in rows} == {0, 1, 2}
    assert folder.read_metrics()[0]["environment_steps"] == 12.0
    assert not math.isnan(folder.read_metrics()[0]["critic/loss"])


@pytest.mark.slow
def test_the_step_limit_truncates_and_bootstraps(tmp_path: Path) -> None:
    folder = trained(tmp_path, "--rollout.max_steps", "2", environment={"name": "tests.plugins:Flaky", "steps": 3})
    assert {row["status"] for row in read_rows(folder.episodes / "step_000001.parquet")} == {"truncated"}


def test_an_observer_hears_of_every_episode_and_step(tmp_path: Path) -> None:
    heard: list[str] = []

    class Listening(Callback):
        def on_train_start(self, done: int, steps: int) -> None:
            heard.append(f"{done}/{steps}")

        def on_episode(self, episode: Any) -> None:
            heard.append("episode")

        def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
            heard.append(f"step {step}")

    run = settings("tiny", tmp_path)
    train(run, RunFolder.create(run), callbacks=[Listening()])
    assert heard == ["0/2", *["episode"] * 4, "step 1", *["episode"] * 4, "step 2"]


@pytest.mark.slow
def test_a_run_that_is_trained_twice_in_one_process_is_the_same_run(tmp_path: Path) -> None:
    """What a credit or schedule remembers belongs to the learner, not to the recipe."""
    results = []
    for name in ("one", "two"):
        run = settings(
            "tiny", tmp_path, "--name", name, "--training.steps", "3",
            "--algorithm.schedule", "{ name = 'agent-by-agent', interval = 4 }",
        )  # fmt: skip
        results.append(run)
    shared = results[0].algorithm
    metrics = []
    for run in results:
        folder = RunFolder.create(run)
        train(run.model_copy(update={"algorithm": shared}), folder)
        metrics.append([row["policy_loss"] for row in folder.read_metrics()])
    assert metrics[0] == metrics[1]
