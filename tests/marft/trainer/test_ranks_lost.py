"""Ranks that are lost or hang, whatever they hold: the run goes on, and comes to what one comes to that nothing befell."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from marft.config.interfaces.schedule import Progress
from marft.models.policy_registry import PolicyRegistry
from marft.runs.run_folder import RunFolder
from marft.trainer import train as training
from marft.trainer.learner_backend import RanksLostError
from marft.trainer.non_finite_guard import NonFiniteGuard
from marft.trainer.ranks.distributed_learner import RANKS_LOST, DistributedLearner
from tests.marft.trainer.test_ranks_runs import FULL, NIGHT, assert_close, assert_same, on_two_models, run_of, trained

PATIENCE = 15.0
SHARD = ("--training.shard", "true")
OFFLOAD = ("--training.offload_optimizer", "true")
HANGS = ("--training.rank_timeout_seconds", str(PATIENCE))


def struck(monkeypatch: pytest.MonkeyPatch, step: int, what: int, rank: int = 1) -> list[int]:
    """Have another rank sent a signal, once, when the first one begins to learn a step → whose process it was."""
    found: list[int] = []
    companies: list[DistributedLearner] = []
    careful, company = NonFiniteGuard.learn, DistributedLearner.learn

    def mortal(self: NonFiniteGuard, episodes: object, progress: Progress, *rest: object) -> object:
        if progress.step == step and not found:
            found.append(companies[-1]._peers[rank - 1].pid)
            os.kill(found[-1], what)
        return careful(self, episodes, progress, *rest)  # type: ignore[arg-type]

    def led(self: DistributedLearner, episodes: object, progress: Progress, *rest: object) -> object:
        companies.append(self)
        return company(self, episodes, progress, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(NonFiniteGuard, "learn", mortal)
    monkeypatch.setattr(DistributedLearner, "learn", led)
    return found


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_ranks_that_are_lost_with_what_they_held_are_counted_once_a_loss_and_in_one_step_twice_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, 2, *FULL)
    folder, told, rows = RunFolder.create(run), list[int](), iter([1, 3, 3])

    def lost(start: object, observer: object, before: int) -> RanksLostError:
        told.append(before)
        return RanksLostError("rank 1 is gone")

    monkeypatch.setattr(training, "_train", lost)
    monkeypatch.setattr(RunFolder, "read_metrics", lambda _: [{}] * next(rows))
    monkeypatch.setattr(training.RunInit, "prepare", lambda *_, **__: None)
    with pytest.raises(RanksLostError):
        training.train(run, folder)
    assert told == [0, 1, 1]


night = pytest.mark.skipif(not NIGHT, reason="a quarter of a minute and more each: make nightly")


@pytest.mark.slow
@night
@pytest.mark.parametrize("parts", [(), SHARD])
def test_a_rank_that_learns_on_a_model_alone_is_killed_and_its_model_is_learned_as_if_it_had_not_been(
    parts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, _ = trained(on_two_models(tmp_path / "right", 2, *parts))
    killed = struck(monkeypatch, 1, signal.SIGKILL)
    folder, notes = trained(on_two_models(tmp_path / "struck", 2, *parts))
    assert len(killed) == 1
    assert_same(folder, right, 2)
    assert [row[RANKS_LOST] for row in folder.read_metrics()] == [0.0, 1.0]
    assert any("rank 1 was killed (SIGKILL)" in note for note in notes)


@pytest.mark.slow
@night
@pytest.mark.parametrize("parts", [(), FULL])
def test_a_rank_that_hangs_is_given_up_after_the_patience_and_ended(
    parts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, _ = trained(run_of(tmp_path / "right", 2, *parts))
    hung = struck(monkeypatch, 1, signal.SIGSTOP)
    began = time.monotonic()
    folder, notes = trained(run_of(tmp_path / "struck", 2, *HANGS, *parts))
    assert time.monotonic() - began < PATIENCE + 60
    assert gone(*hung)
    assert_same(folder, right, 2)
    assert [row[RANKS_LOST] for row in folder.read_metrics()] == [0.0, 1.0]
    assert any("rank 1 hung, and was ended" in note for note in notes), notes


@pytest.mark.slow
@night
def test_a_rank_that_ends_while_it_loads_is_noticed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who had gone to meet it waited for the whole patience."""
    set_models, began = DistributedLearner.set_models, list[float]()

    def mortal(self: DistributedLearner, models: PolicyRegistry) -> None:
        self._peers[0].child.end()
        began.append(time.monotonic())
        set_models(self, models)

    monkeypatch.setattr(DistributedLearner, "set_models", mortal)
    with pytest.raises(RanksLostError, match="rank 1 was killed"):
        trained(run_of(tmp_path, 2, *HANGS))
    assert time.monotonic() - began[0] < PATIENCE / 2


@pytest.mark.slow
@night
def test_models_on_ranks_of_their_own_lie_in_parts_there(tmp_path: Path) -> None:
    """Each on two ranks of four, one of them learned whole."""
    whole = ("--policies.actor.train", "full")
    alone, _ = trained(on_two_models(tmp_path / "alone", 1, *whole))
    placed = ("--models.base.ranks", "[0, 1]", "--models.other.ranks", "[2, 3]", "--training.ranks", "4")
    four, _ = trained(on_two_models(tmp_path / "four", 1, *whole, *placed, *SHARD))
    assert_close(four, alone)


@pytest.mark.slow
@night
@pytest.mark.parametrize("run", [run_of, on_two_models])
def test_moments_in_the_hosts_memory_and_in_parts_are_those_of_ranks_that_keep_them_and_go_on(
    run: Callable[..., object], tmp_path: Path
) -> None:
    kept, _ = trained(run(tmp_path / "kept", 2, *FULL))  # type: ignore[arg-type]
    trained(run(tmp_path / "put away", 2, *FULL, *OFFLOAD), stop=1)  # type: ignore[arg-type]
    folder, _ = trained(run(tmp_path / "put away", 2, *FULL, *OFFLOAD), resume=True)  # type: ignore[arg-type]
    assert_same(folder, kept, 2)


@pytest.mark.slow
@night
def test_where_an_engine_apart_samples_no_rank_gathers_and_the_same_is_saved(tmp_path: Path) -> None:
    """Whole models are published and saved from the host's memory, and go on from there."""
    apart = ("--engine.kind", "process", *FULL)
    right, _ = trained(run_of(tmp_path / "right", 2, *FULL))
    trained(run_of(tmp_path / "apart", 2, *apart), stop=1)
    folder, _ = trained(run_of(tmp_path / "apart", 2, *apart), resume=True)
    assert_close(folder, right)
