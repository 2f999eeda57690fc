"""A run whose rate is a hundred times too high: it is told of, and goes back to where it was sound."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from marft.config import RunSettings
from marft.evaluation.guards.history import ROLLBACK_KEY
from marft.evaluation.guards.monitor import GuardMonitor, replay_messages
from marft.rollout.local_runner import LocalRolloutRunner, open_rollout_runner
from marft.runs.checkpoints import CheckpointManager, restore, steps_to_keep
from marft.runs.metrics_log import LogDigest
from marft.runs.run_folder import RunFolder, parse_step
from marft.runs.state import State, verify
from marft.trainer.learner import Learner
from marft.trainer.rollback import Rollback
from marft.trainer.train import train
from tests.helpers import settings
from tests.marft.runs.test_resume import StopAfter, assert_same
from tests.nights import BY_NIGHT, some
from tests.runs import Listening

STEPS = 9


def hot(output: Path, *overrides: str) -> RunSettings:
    return settings(
        "tiny", output, "--training.steps", str(STEPS), "--checkpoints.every", "2", "--guards.window", "3",
        "--algorithm.optimizer.learning_rate", "1.0", "--algorithm.optimizer.warmup_steps", "0", "--agents.actor.sampling.max_new_tokens", "32",
        "--agents.reasoner.sampling.max_new_tokens", "32", *overrides,
    )  # fmt: skip


@pytest.fixture(scope="module")
def returned(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, list[str]]:
    run, listening = hot(tmp_path_factory.mktemp("returned"), "--guards.on_collapse", "rollback"), Listening()
    folder = RunFolder.create(run)
    train(run, folder, callbacks=[listening])
    return folder, listening.notes


@BY_NIGHT
@pytest.mark.slow
def test_a_collapse_goes_back_with_lower_rates_as_often_as_it_may_and_all_of_it_is_recorded(
    returned: tuple[RunFolder, list[str]],
) -> None:
    folder, notes = returned
    rows = folder.read_metrics()
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1)), "the log keeps what collapsed"
    backs = {row["step"]: row[ROLLBACK_KEY] for row in rows if ROLLBACK_KEY in row}
    assert 1 <= len(backs) <= 2
    assert next(iter(backs.values())) == 0
    rates = [row["policies/actor/learning_rate"] for row in rows]
    guards = hot(folder.path.parent, "--guards.on_collapse", "rollback").guards
    watch, cooled = GuardMonitor(guards, ()), 1.0
    for row, rate in zip(rows, rates, strict=True):
        assert rate == pytest.approx(cooled)
        watch.check(row)
        if ROLLBACK_KEY in row:
            assert 0 < watch.learning_rate_factor() < guards.rollback_lr_factor, "the hotter, the cooler"
            cooled *= watch.learning_rate_factor()
            watch.roll_back(int(row[ROLLBACK_KEY]))
    state = verify(folder.checkpoints / "step_000009")
    assert (state.rollbacks, state.learning_rate_scale) == (len(backs), pytest.approx(cooled))
    said = replay_messages(guards, rows)
    assert [text for text in said if text in notes] == said
    assert sum("the run goes back to the checkpoint of step" in text for text in said) == len(backs)


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("after", some([3, 2, 4, 6], 4))
def test_a_run_that_has_gone_back_goes_on_as_if_it_had_not_stopped(
    after: int, returned: tuple[RunFolder, list[str]], tmp_path: Path
) -> None:
    run = hot(tmp_path, "--guards.on_collapse", "rollback")
    folder = RunFolder.create(run)
    train(run, folder, callbacks=[StopAfter(after)])
    train(run, folder, resume=True)
    assert_same(folder, returned[0], "step_000009")


@pytest.mark.parametrize(
    ("kept", "best_then", "best_now", "expected"),
    [
        ([2, 4, 6, 8], (2, 0.5), (6, 0.9), (2, 0.5)),
        ([2, 4, 6], (2, 0.5), (8, 0.9), (2, 0.5)),  # 8 is the step that goes back: what is saved there are old weights
        ([4, 6, 8], (2, 0.5), (6, 0.9), (0, -1.0)),
        ([2, 4, 6, 8], (2, 0.5), (2, 0.5), (2, 0.5)),
        ([4, 6, 8], (4, 0.7), (4, 0.7), (4, 0.7)),
    ],
)
def test_no_checkpoint_that_was_given_up_stays_the_best_one(
    kept: list[int], best_then: tuple[int, float], best_now: tuple[int, float], expected: tuple[int, float],
    tmp_path: Path,
) -> None:  # fmt: skip
    run = hot(tmp_path, "--guards.on_collapse", "rollback")
    folder = RunFolder.create(run)
    for step in kept:
        (folder.checkpoints / f"step_{step:06d}").mkdir(parents=True)
        (folder.checkpoints / f"step_{step:06d}" / "state.json").write_text("{}")
    checkpoints, learner = CheckpointManager(folder, run.checkpoints), cast("Any", SimpleNamespace(optimizers={}))
    goes_back = Rollback(run, checkpoints, cast("Any", None), learner, lambda _: None)
    then = State(step=4, best_step=best_then[0], best_score=best_then[1], best_by="reward")
    now = State(step=8, best_step=best_now[0], best_score=best_now[1], best_by="reward")
    state = goes_back.roll_back(now, cast("Any", SimpleNamespace(state=then)), 0.5)
    assert (state.best_step, state.best_score) == expected
    assert [parse_step(path) for path in checkpoints.steps()] == [step for step in kept if step <= 4]


@BY_NIGHT
@pytest.mark.slow
def test_by_default_a_collapse_is_only_told_of(tmp_path: Path) -> None:
    run, listening = hot(tmp_path), Listening()
    folder = RunFolder.create(run)
    state = train(run, folder, callbacks=[listening])
    assert any("(guards.kl = 0.1)" in note for note in listening.notes)
    assert state.rollbacks == 0
    assert not (folder.checkpoints / "step_000000").exists()
    assert any("guards/kl" in row for row in folder.read_metrics())
    assert not any(ROLLBACK_KEY in row for row in folder.read_metrics())


@pytest.mark.slow
def test_where_the_checkpoint_to_go_back_to_is_damaged_an_older_one_is_taken_and_without_any_it_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = hot(tmp_path, "--guards.on_collapse", "rollback")
    folder = RunFolder.create(run)
    train(run, folder, callbacks=[StopAfter(2)])
    with open_rollout_runner(run) as rollouts:
        learner = Learner(run, rollouts.models)
        checkpoints = CheckpointManager(folder, run.checkpoints, min_rollback_age=run.guards.window)
        back = partial(restore, models=rollouts.models, learner=learner)
        returning = Rollback(run, checkpoints, rollouts.models, learner, back)
        state = State(step=2)
        found = returning.target(state, 2)
        assert found is not None
        assert found.state.step == 2
        (folder.checkpoints / "step_000002" / "state.json").write_text("{}")
        found = returning.target(state, 2)
        assert found is not None
        assert found.state.step == 0
        assert any("step_000002" in note and "step 2: passed over" in note for note in caplog.messages)
        assert returning.target(replace(state, rollbacks=run.guards.max_rollbacks), 2) is None
        (folder.checkpoints / "step_000000" / "state.json").write_text("{}")
        assert returning.target(state, 2) is None
        told = [note for note in caplog.messages if "it goes on as it is" in note]
        assert len(told) == 1, "once"
        assert "has gone back 2 times" in told[0]


def weights(rollouts: LocalRolloutRunner) -> dict[str, torch.Tensor]:
    """A copy of what the actor has learned."""
    return {name: value.detach().clone() for name, value in rollouts.models.policies["actor"].parameters().items()}


@pytest.mark.slow
def test_what_learns_is_put_back_as_it_was_and_cooled_each_time(tmp_path: Path) -> None:
    run = hot(tmp_path, "--guards.on_collapse", "rollback", "--checkpoints.keep_last", "9")
    folder = RunFolder.create(run)
    with open_rollout_runner(run) as rollouts:
        assert isinstance(rollouts, LocalRolloutRunner)
        learner = Learner(run, rollouts.models)
        checkpoints = CheckpointManager(folder, run.checkpoints, min_rollback_age=run.guards.window)
        back = partial(restore, models=rollouts.models, learner=learner)
        returning = Rollback(run, checkpoints, rollouts.models, learner, back)

        def steps() -> list[str]:
            return [path.name for path in checkpoints.steps()]

        returning.begin(State())
        assert steps() == ["step_000000"]
        returning.begin(State(step=1))
        assert steps() == ["step_000000"], "a run that goes on keeps no further one to go back to"
        for step in (2, 4, 6):
            checkpoints.save(State(step=step, best_step=4), run, rollouts.models, learner, LogDigest.from_content(b""))
        before = weights(rollouts)
        for parameter in rollouts.models.policies["actor"].parameters().values():
            parameter.data.add_(1.0)
        state = State(step=7, best_step=4, rollbacks=1, learning_rate_scale=0.5)
        record = returning.target(state, 3)
        assert record is not None
        assert record.state.step == 2
        state = returning.roll_back(state, record, 0.1)
        assert all(torch.equal(value, before[name]) for name, value in weights(rollouts).items())
        assert (state.step, state.rollbacks, state.learning_rate_scale, state.best_step) == (
            7,
            2,
            pytest.approx(0.05),
            0,
        )
        rates = [optimizer.learning_rate for optimizer in learner.optimizers.values()]
        assert rates == pytest.approx([0.05] * len(rates))
        assert steps() == ["step_000000", "step_000002"]
        returning.begin(State(learning_rate_scale=0.25))
        assert {optimizer.learning_rate for optimizer in learner.optimizers.values()} == {0.25}, "a run that goes on"


@pytest.mark.slow
def test_a_run_that_never_goes_back_keeps_nothing_to_go_back_to(tmp_path: Path) -> None:
    run = hot(tmp_path)
    folder = RunFolder.create(run)
    with open_rollout_runner(run) as rollouts:
        checkpoints = CheckpointManager(folder, run.checkpoints)
        Rollback(run, checkpoints, rollouts.models, Learner(run, rollouts.models), lambda _: None).begin(State())
    assert checkpoints.steps() == []


@pytest.mark.slow
def test_a_checkpoint_that_a_run_goes_back_to_is_not_rated_by_what_collapsed(tmp_path: Path) -> None:
    run = hot(tmp_path, "--guards.on_collapse", "rollback", "--checkpoints.every", "3", "--training.steps", "3")
    folder = RunFolder.create(run)
    train(run, folder)
    assert ROLLBACK_KEY in folder.read_metrics()[-1]
    state = verify(folder.checkpoints / "step_000003")
    assert (state.rollbacks, state.best_step) == (1, 0), "its weights are those of step 0"


@pytest.mark.parametrize(("every", "last"), [(1, 1), (2, 1), (2, 2), (3, 2), (10, 1)])
def test_there_is_always_a_checkpoint_from_just_before_the_window(every: int, last: int) -> None:
    window, done = 5, [0]
    for step in range(1, 41):
        sound = step - window
        due = [each for each in range(every, step, every) if each <= sound]
        assert max((each for each in done if each <= sound), default=0) == max(due, default=0), step
        if step % every == 0:
            done.append(step)
            done = sorted(steps_to_keep(done, last, window))
    assert len(done) <= 2 + last + window // every + 1
    assert steps_to_keep(done, last, 0) == set(done[-last:])
