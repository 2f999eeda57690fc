"""On a simulated GPU, learning equals that of the CPU, and waits for the GPU once per optimizer step.

The bounds are today's counts. A new synchronization fails the test, and the message names its line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from marft.config import RunSettings, load_recipe
from marft.config.interfaces.schedule import Progress, UpdatePhase
from marft.models.policy_registry import PolicyRegistry
from marft.runs.checkpoints import CheckpointManager, load_checkpoint
from marft.runs.metrics_log import LogDigest
from marft.runs.run_folder import RunFolder
from marft.runs.state import State, read_record
from marft.trainer.learner import Learner
from marft.trainer.local_learner import LocalLearner
from marft.trainer.micro_batch import FixedLogProbs
from marft.trainer.non_finite_guard import Snapshot, find_non_finite
from marft.trainer.scoring import score_actions
from marft.trainer.train import train
from marft.trainer.update import PolicyUpdater
from tests.learners import ROLES, begun, episodes, recipe, samples_of
from tests.nights import BY_NIGHT, some
from tests.simulated_gpu import Counts, counting, simulated_gpu

LEARNT = {
    "marft": (),
    "grpo": ("--algorithm.kl", "{ coefficient = 0.1 }"),
    "ppo": ("--algorithm.entropy_coefficient", "0.01", "--algorithm.sampler_correction.level", "action"),
    "happo": (),
    "gspo": ("--algorithm.sampler_correction.level", "geometric"),
}
SYNCS = {"marft": 13, "grpo": 7, "ppo": 13, "happo": 25, "gspo": 7}  # of a step on four episodes
MICRO_BATCHES = 6  # of the samples in batches of 100 tokens, more than in one of 800
MICRO_BATCH_LAUNCHES, COPIES = 320, 4  # of a micro-batch: rows, samples, attention, first tokens
CUDA = ("--device", "cuda")
Small = Callable[..., RunSettings]


@pytest.fixture
def small(tmp_path: Path, random_model: Path) -> Small:
    """Recipes of an algorithm on the random model."""
    return lambda name, *overrides: recipe(tmp_path, name, "--models.base.path", str(random_model), *overrides)


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with simulated_gpu():
        yield


def learn(small: Small, name: str, *overrides: str) -> tuple[dict[str, float], Counts, Learner]:
    """Learn one step on the GPU."""
    learner = begun(small(name, *CUDA, *overrides))
    with counting(f"a step of {name}") as counts:
        metrics = learner.learn(episodes(4), Progress(0, 0))
    return metrics, counts, learner


def update(learner: Learner, minibatches: int = 1) -> Counts:
    """Count one update of all policies."""
    setup = learner.update_setup()
    samples = samples_of(episodes(4))
    settings = setup.settings.model_copy(update={"minibatches": minibatches, "epochs": 1})
    updater = PolicyUpdater(type(setup)(settings, setup.objective, setup.optimizers, setup.packing), FixedLogProbs())
    with counting("an update") as counts:
        updater.run(UpdatePhase(ROLES), samples, step=0)
    return counts


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_update_waits_once_however_many_micro_batches_it_has(small: Small, dtype: str) -> None:
    for tokens in ("100", "800"):
        options = "--models.base.dtype", dtype, "--training.tokens_per_micro_batch", tokens
        learner = begun(small("marft", *CUDA, *options))
        counts = update(learner)
        assert counts.num_syncs <= 1, counts.report()
        assert counts.to_device.number <= COPIES * (MICRO_BATCHES + 1), counts.report()


def test_launches_of_a_micro_batch_have_a_bound(small: Small) -> None:
    found = [
        update(begun(small("marft", *CUDA, "--training.tokens_per_micro_batch", tokens))) for tokens in ("100", "800")
    ]
    many, few = (counts.num_launches for counts in found)
    assert many - few <= MICRO_BATCHES * MICRO_BATCH_LAUNCHES, found[0].report(40)


def test_scoring_waits_once(small: Small) -> None:
    learner = begun(small("grpo", *CUDA, "--training.tokens_per_micro_batch", "100"))
    with counting("scoring") as counts:
        score_actions(learner.packing, samples_of(episodes(4)))
    assert counts.num_syncs <= 1, counts.report()


def test_the_critic_waits_once_for_values_and_once_per_update(small: Small) -> None:
    learner = begun(small("marft", *CUDA))
    assert learner.critic is not None
    with counting("values") as counts:
        values = learner.critic.evaluate(episodes(4))
    assert counts.num_syncs <= 1, counts.report()
    assert counts.to_device.number <= 7, counts.report()  # three per micro-batch, and the order of the values
    with counting("critic's update") as counts:
        learner.critic.update(values, values.actions, 0)
    settings = learner.settings.critic
    assert counts.num_syncs <= settings.epochs * settings.minibatches, counts.report()


def test_a_step_waits_as_seldom_with_a_snapshot_and_a_check_of_all_numbers(small: Small) -> None:
    learner = LocalLearner(small("grpo", *CUDA))
    learner.set_models(PolicyRegistry(learner.run))
    learner.learn(episodes(4), Progress(0, 0))
    with counting("a guarded step") as counts:
        learner.learn(episodes(4), Progress(1, 24))
    assert counts.num_syncs <= SYNCS["grpo"] + 2, counts.report()


def test_publishing_checkpoint_and_resume_pack_their_tensors(small: Small, tmp_path: Path) -> None:
    run = small("marft", *CUDA, "--output", str(tmp_path / "runs"))
    models = PolicyRegistry(run)
    with counting("publishing") as counts:
        models.save_policy("actor", tmp_path / "actor")
        models.load_policy("actor", tmp_path / "actor")
    assert counts.num_syncs <= 2, counts.report()
    state = Learner(run, models)
    state.learn(episodes(4), Progress(0, 0))
    manager = CheckpointManager(RunFolder.create(run), run.checkpoints)
    with counting("checkpoint") as counts:
        path = manager.save(State(step=1), run, models, state, LogDigest.from_content(b""))
    assert counts.num_syncs <= 7, counts.report()
    fresh = Learner(run, models)
    with counting("resume") as counts:
        load_checkpoint(read_record(path), models, fresh)
    assert counts.num_syncs <= 6, counts.report()
    saved, restored = (one.optimizer_state() for one in (state, fresh))
    assert saved.keys() == restored.keys()
    assert all(torch.equal(saved[name].cpu(), restored[name].cpu()) for name in saved)


def test_a_step_can_be_undone(small: Small) -> None:
    learner = begun(small("marft", *CUDA))
    learner.learn(episodes(4), Progress(0, 0))
    before = Snapshot(learner)
    with counting("a snapshot") as counts:
        before.take()
    assert counts.num_syncs <= 1, counts.report()
    parameters = [p for one in learner.optimizers.values() for p in one.parameters.values()]
    first = [p.detach().clone() for p in parameters]
    learner.learn(episodes(4), Progress(1, 24))
    before.restore()
    assert all(torch.equal(one, other) for one, other in zip(first, parameters, strict=True))


def test_a_number_that_is_not_finite_is_found(small: Small) -> None:
    learner = begun(small("marft", *CUDA))
    learner.learn(episodes(4), Progress(0, 0))
    with counting("check") as counts:
        assert find_non_finite(learner) == []
    assert counts.num_syncs <= 1, counts.report()
    parameter = next(iter(learner.optimizers["actor"].parameters.values()))
    learner.optimizers["actor"].optimizer.state[parameter]["exp_avg"][0] = np.nan
    assert find_non_finite(learner) == ["policies.actor"]


@pytest.mark.slow
class TestSteps:
    @BY_NIGHT
    @pytest.mark.parametrize("name", some(LEARNT))
    def test_waits_do_not_grow_with_micro_batches(self, small: Small, name: str) -> None:
        """A minibatch reads before it steps, what it measured and decides by, and its norms."""
        found = []
        for tokens in ("60", "130"):
            metrics, counts, _ = learn(small, name, "--training.tokens_per_micro_batch", tokens, *LEARNT[name])
            assert metrics["gradient_norm"] > 0
            found.append(counts)
        assert found[0].num_syncs == found[1].num_syncs <= SYNCS[name], found[0].report()

    def test_a_run_samples_learns_and_saves(self, tmp_path: Path) -> None:
        """Tokens are sampled in CUDA graphs: a replay, and then a read, for each token of all rows."""
        words = ("--training.steps", "2", "--rollout.tasks_per_step", "2", "--evaluation.every", "0")
        run = load_recipe("demo", [*words, *CUDA, "--models.base.dtype", "float32", "--output", str(tmp_path)])
        with counting("a run") as counts:
            train(run, folder := RunFolder(tmp_path / run.name))
        metrics = folder.read_metrics()[-1]
        assert metrics["log_prob_difference"] < 1e-4
        assert metrics["gradient_norm"] > 0
        assert counts.launches["graph replay"] > 10, counts.report()
        reads = sum(n for line, n in counts.syncs.items() if line.startswith("copy to host at marft/inference/"))
        assert reads <= 3 * counts.launches["graph replay"] + 40, counts.report()

    @pytest.mark.parametrize("name", some(LEARNT, of=5))
    def test_what_is_learned_is_what_the_cpu_learns(self, small: Small, name: str) -> None:
        there, counts, _ = learn(small, name, *LEARNT[name])
        here = begun(small(name, "--device", "cpu", *LEARNT[name])).learn(episodes(4), Progress(0, 0))
        assert counts.num_syncs <= SYNCS[name], counts.report()
        assert there.keys() == here.keys()
        for metric in (
            "gradient_norm",
            "policy_loss",
            "kl",
            "entropy",
            "critic/loss",
            "agents/actor/log_prob_difference",
        ):
            if metric in here:
                assert there[metric] == pytest.approx(here[metric], rel=2e-2, abs=1e-5), metric

    @pytest.mark.parametrize(
        "changes",
        some([
            ("--models.base.dtype", "bfloat16"),
            ("--training.share_prefixes", "always"),
            ("--models.base.gradient_checkpointing", "true"),
            ("--policies.actor.train", "full", "--policies.actor.lora", "{}"),
            ("--algorithm.critic.body", "lora", "--algorithm.critic.normalize_values", "true"),
            ("--algorithm.level", "token"),
        ], of=6),
    )  # fmt: skip
    def test_no_tensor_is_on_the_wrong_device(self, small: Small, changes: tuple[str, ...]) -> None:
        metrics, _, learner = learn(small, "marft", *changes)
        assert metrics["gradient_norm"] > 0
        assert find_non_finite(learner) == []
