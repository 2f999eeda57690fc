"""Runs in which several processes learn: they go on to the bit, on another number of ranks, and after one is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from marft.config import RunSettings
from marft.config.interfaces.schedule import Progress
from marft.evaluation.guards.history import ROLLBACK_KEY
from marft.models.backbone import Backbone
from marft.runs.run_folder import RunFolder
from marft.runs.state import verify
from marft.trainer.learner import Learner
from marft.trainer.non_finite_guard import NonFiniteGuard
from marft.trainer.ranks.distributed_learner import RANKS_LOST, DistributedLearner
from marft.trainer.train import train
from tests.helpers import settings
from tests.marft.runs.test_resume import StopAfter
from tests.marft.runs.test_returning import STEPS, hot
from tests.nights import BY_NIGHT, NIGHT
from tests.runs import Listening

FULL = ("--policies.actor.train", "full", "--training.shard", "true")
WAYS = {"whole": (), "in parts": FULL}


def run_of(output: Path, ranks: int, *overrides: str, steps: int = 2) -> RunSettings:
    return settings(
        "tiny", output, "--training.ranks", str(ranks), "--training.steps", str(steps),
        "--algorithm.optimizer.learning_rate", "1e-3", "--algorithm.optimizer.epsilon", "1e-4",
        "--training.rank_timeout_seconds", "60", *overrides,
    )  # fmt: skip


def trained(run: RunSettings, *, resume: bool = False, stop: int = 99) -> tuple[RunFolder, list[str]]:
    class Until(StopAfter, Listening):
        def __init__(self) -> None:
            StopAfter.__init__(self, stop)
            Listening.__init__(self)

    listening, folder = Until(), RunFolder.create(run) if not resume else RunFolder(Path(run.output) / run.name)
    train(run, folder, resume=resume, callbacks=[listening])
    return folder, listening.notes


def weights(folder: RunFolder, step: int) -> dict[str, np.ndarray]:
    checkpoint = folder.checkpoints / f"step_{step:06d}"
    return {
        f"{file.relative_to(checkpoint)}/{name}": tensor
        for file in sorted(checkpoint.rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def assert_same(mine: RunFolder, right: RunFolder, step: int) -> None:
    a, b = weights(mine, step), weights(right, step)
    assert a.keys() == b.keys()
    assert all(a[name].tobytes() == b[name].tobytes() for name in b)
    rows = zip(mine.read_metrics(), right.read_metrics(), strict=True)
    for row, expected in rows:
        timeless = {name for name in expected if "second" not in name and name != RANKS_LOST}
        assert {name: row[name] for name in timeless} == {name: expected[name] for name in timeless}


@pytest.fixture(scope="module", params=WAYS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, RunFolder]:
    """Two steps of two ranks that nothing befell."""
    return request.param, trained(run_of(tmp_path_factory.mktemp("pair"), 2, *WAYS[request.param], steps=3))[0]


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="half a minute each: make nightly")
def test_a_rank_that_is_killed_is_started_again_and_the_step_is_learned_once(
    pair: tuple[str, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it learns the second step, and before the third begins. What comes of it is what comes of a run that
    nothing befell, to the bit."""
    way, right = pair
    killed: list[int] = []
    companies: list[DistributedLearner] = []
    careful, company = NonFiniteGuard.learn, DistributedLearner.learn

    def kill() -> None:
        killed.append(companies[-1]._peers[0].pid)
        os.kill(killed[-1], signal.SIGKILL)

    def mortal(self: NonFiniteGuard, episodes: object, progress: Progress, told: object) -> object:
        if progress.step == 1 and not killed:
            kill()
        return careful(self, episodes, progress, told)  # type: ignore[arg-type]

    def led(self: DistributedLearner, episodes: object, progress: Progress, told: object) -> object:
        companies.append(self)
        if progress.step == 2 and len(killed) == 1:
            kill()
        return company(self, episodes, progress, told)  # type: ignore[arg-type]

    monkeypatch.setattr(NonFiniteGuard, "learn", mortal)
    monkeypatch.setattr(DistributedLearner, "learn", led)
    folder, notes = trained(run_of(tmp_path, 2, *WAYS[way], steps=3))
    assert len(killed) == 2
    assert_same(folder, right, 3)
    assert [row[RANKS_LOST] for row in folder.read_metrics()] == [0.0, 1.0, 1.0]
    assert sum("rank 1 was killed (SIGKILL)" in note for note in notes) == 2


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="a quarter of a minute each: make nightly")
def test_it_goes_on_as_if_it_had_never_stopped_on_as_many_ranks(pair: tuple[str, RunFolder], tmp_path: Path) -> None:
    way, right = pair
    trained(run_of(tmp_path, 2, *WAYS[way], steps=3), stop=2)
    folder, _ = trained(run_of(tmp_path, 2, *WAYS[way], steps=3), resume=True)
    assert_same(folder, right, 3)


def on_others(first: int, then: int, way: str, tmp_path: Path) -> tuple[RunFolder, RunFolder]:
    """A run of one rank, and one that another number of ranks went on with."""
    alone, _ = trained(run_of(tmp_path / "alone", 1, *WAYS[way][:2]))
    trained(run_of(tmp_path / "others", first, *WAYS[way]), stop=1)
    parts = WAYS[way] if then > 1 else WAYS[way][:2]
    folder, _ = trained(run_of(tmp_path / "others", then, *parts), resume=True)
    return alone, folder


def check_others(first: int, then: int, way: str, tmp_path: Path) -> None:
    alone, folder = on_others(first, then, way, tmp_path)
    assert verify(folder.checkpoints / "step_000002").step == 2
    assert_close(folder, alone)


def assert_close(folder: RunFolder, alone: RunFolder) -> None:
    """The same but for rounding; of moments the names and shapes."""
    mine, right = weights(folder, 2), weights(alone, 2)
    assert mine.keys() == right.keys()
    for name, tensor in right.items():
        assert mine[name].shape == tensor.shape
        if "optimizer" not in name:
            np.testing.assert_allclose(mine[name], tensor, rtol=1e-3, atol=1e-4, err_msg=name)


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS if NIGHT else ["in parts"])
def test_a_checkpoint_of_two_ranks_goes_on_in_one_process(way: str, tmp_path: Path) -> None:
    check_others(2, 1, way, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="half a minute each: make nightly")
@pytest.mark.parametrize("then", [1, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_of_four_ranks_goes_on_on_one_and_on_three(way: str, then: int, tmp_path: Path) -> None:
    check_others(4, then, way, tmp_path)


def on_two_models(output: Path, ranks: int, *overrides: str) -> RunSettings:
    """A team of which each agent's model is learned on by other ranks."""
    placed = [("--models.base.ranks", "[0]"), ("--models.other.ranks", "[1]")] if ranks > 1 else []
    return run_of(
        output, ranks, "--models.other.path", "tiny", "--policies.actor.model", "other",
        *(word for pair in placed for word in pair), *overrides,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="test_ranks_placed.py holds it without a kill: make nightly")
def test_models_on_ranks_of_their_own_are_learned_on_at_one_time_and_alike_though_a_rank_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it learns the second step."""
    alone, _ = trained(on_two_models(tmp_path / "alone", 1))
    passed: list[bool] = []
    learning: list[Learner] = []
    learn, hidden, company = Learner.learn, Backbone.hidden_states, DistributedLearner.learn
    others: list[int] = []

    def led(self: DistributedLearner, *arguments: object) -> object:
        others[:] = [other.pid for other in self._peers]
        return company(self, *arguments)  # type: ignore[arg-type]

    def noting(self: Learner, *arguments: object) -> object:
        learning[:] = [self]
        if arguments[1].step == 1 and others:  # type: ignore[attr-defined]
            os.kill(others.pop(), signal.SIGKILL)
        try:
            return learn(self, *arguments)  # type: ignore[arg-type]
        finally:
            learning.clear()

    def watched(self: Backbone, *arguments: object) -> object:
        if learning:
            passed.append(self is learning[0].packing.backbones["reasoner"])
        return hidden(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(DistributedLearner, "learn", led)
    monkeypatch.setattr(Learner, "learn", noting)
    monkeypatch.setattr(Backbone, "hidden_states", watched)
    folder, notes = trained(on_two_models(tmp_path / "two", 2))
    assert [row[RANKS_LOST] for row in folder.read_metrics()] == [0.0, 1.0]
    assert any("rank 1 was killed (SIGKILL)" in note for note in notes)
    assert passed
    assert all(passed), "the first rank learns on the first model alone"
    assert_close(folder, alone)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="a quarter of a minute: make nightly")
@pytest.mark.parametrize("way", WAYS)
def test_all_ranks_go_back_to_a_checkpoint_after_a_collapse(way: str, tmp_path: Path) -> None:
    """Ranks that had not would have drifted apart by the next step, which is refused."""
    ranks = ("--training.ranks", "2", "--guards.on_collapse", "rollback")
    folder, _ = trained(hot(tmp_path, *ranks, *WAYS[way]))
    rows = folder.read_metrics()
    assert any(ROLLBACK_KEY in row for row in rows[:-1])
    assert len(rows) == STEPS


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("--training.shard", "true"), "one rank alone holds all there is"),
        (("--models.base.ranks", "[0, 0]"), "names a rank twice"),
        (("--training.ranks", "2", "--models.base.ranks", "[0, 2]"), "there is no rank 2"),
        (
            ("--training.ranks", "2", "--models.base.ranks", "[1]", "--algorithm.critic.body", "lora"),
            "is learned by all ranks",
        ),
    ],
)
def test_what_ranks_cannot_mean_is_refused_in_words(overrides: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        settings("tiny", tmp_path, *overrides)


@BY_NIGHT
@pytest.mark.slow
def test_one_process_alone_imports_nothing_of_several(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys, marft.trainer.train; from marft.rollout.workers import worker, worker_pool; from marft.models.policy_registry import PolicyRegistry\n"
        "of_several = {'marft.trainer.ranks.distributed_learner', 'marft.trainer.ranks.group', "
        "'marft.models.sharding', 'ray'}\n"
        "assert of_several.isdisjoint(sys.modules), 'imported where one process learns'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_learner_has_moved_when_its_rank_is_lost_and_is_put_back(tmp_path: Path) -> None:
    """What a lost step has changed here is undone before it is learned again: weights, moments, and the critic's."""
    from tests.learners import begun, episodes, recipe

    learner: Learner = begun(recipe(tmp_path, "marft"))
    careful = NonFiniteGuard(learner)
    careful.learn(episodes(2), Progress(0, 0))

    def weights() -> dict[tuple[str, str], torch.Tensor]:
        held = learner.optimizers.items()
        return {(policy, name): p.detach().clone() for policy, it in held for name, p in it.parameters.items()}

    before = weights()
    moments = {name: tensor.clone() for name, tensor in learner.optimizer_state().items()}
    careful.learn(episodes(2, seed=1), Progress(1, 24))
    careful.revert(2)
    assert any(not torch.equal(before[key], tensor) for key, tensor in weights().items()), "that had not begun"
    careful.revert(1)
    assert all(torch.equal(before[key], tensor) for key, tensor in weights().items())
    assert all((moments[name] == tensor).all() for name, tensor in learner.optimizer_state().items())
