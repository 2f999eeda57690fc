"""What the training loop tells whoever plays ahead of it, and when: nothing is begun with a policy that is no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from marft.agents.game import Attempt
from marft.common.callbacks import Callback, CallbackList
from marft.config import RunSettings
from marft.rollout.async_rollout.groups import read_groups
from marft.rollout.async_rollout.sources import RolloutSource
from marft.rollout.runner import RolloutRunner
from marft.rollout.task_sampler import TaskSampler
from marft.runs.metrics_log import MetricsLog
from marft.runs.run_folder import RunFolder
from marft.runs.state import State
from marft.trainer import step_metrics
from marft.trainer import train as training
from marft.trainer.learner_backend import LearnerBackend
from marft.trainer.loop import TrainingLoop
from tests.playing_ahead import TASKS, FakeBegun, FakeRollouts, ahead, ahead_of, fake

MODELS: Any = SimpleNamespace(device=torch.device("cpu"))
LEARNERS = cast(
    "LearnerBackend",
    SimpleNamespace(
        learn=lambda *_: {"environment_steps": 4.0},
        learner_state=None,
        restore=lambda _: None,
    ),
)


class Published(FakeRollouts):
    """Policies that are published; episodes of workers that may be lost."""

    lost, times = 0.0, 0

    def __init__(self, run: RunSettings) -> None:
        super().__init__(run)
        self.played_with: list[int] = []  # of all that was published, by group

    def play_in_background(self, attempts: Sequence[Attempt]) -> FakeBegun:
        self.played_with.append(self.times)
        return super().play_in_background(attempts)

    def publish(self, version: int) -> None:
        self.now, self.times = version, self.times + 1

    def usage(self) -> dict[str, float]:
        return {**super().usage(), "workers_lost": self.lost}


def run_of(lag: int, folder: Path, *overrides: str) -> tuple[RunFolder, RunSettings]:
    run = ahead_of(lag, "--output", str(folder), "--training.record_episodes_every", "0", *overrides, steps=6)
    return RunFolder.create(run), run


def loop_of(
    run: RunSettings, folder: RunFolder, rollouts: Published, callbacks: Callback, log: MetricsLog, **parts: Any
) -> TrainingLoop:
    unused: Any = None
    return TrainingLoop(
        folder=folder,
        rollouts=cast("RolloutRunner", rollouts),
        models=MODELS,
        source=ahead(rollouts),
        sampler=TaskSampler(run, TASKS),
        learner=LEARNERS,
        prompt_optimizer=None,
        callbacks=CallbackList([callbacks]),
        log=log,
        **{"guards": unused, "rollback": unused, "checkpoints": unused, **parts},
    )


def versions(rollouts: FakeRollouts) -> list[int]:
    """At which groups were begun, of each step's two."""
    begun = [version for _, _, version in rollouts.begun]
    assert begun[::2] == begun[1::2]
    return begun[::2]


def test_a_step_publishes_its_policies_and_then_more_is_begun_with_those(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, run = run_of(1, tmp_path)
    rollouts = Published(run)
    state = State()
    rollouts.excluded_tasks["t9"] = "it ended its workers"
    with closing(MetricsLog(folder.metrics_path)) as log:
        loop = loop_of(run, folder, rollouts, Callback(), log)
        for _ in range(3):
            state, metrics = loop.step(state)
    assert caplog.messages == ["task 't9': it ended its workers"]
    assert versions(rollouts) == [0, 0, 1, 2, 3]
    assert (state.step, state.tasks_drawn, state.excluded_tasks) == (3, 6, {"t9": "it ended its workers"})
    assert (metrics["policy_lag"], metrics["policy_lag_max"]) == (1.0, 1.0)


class Back:
    """A guard that has a run go back once, after its third step, and what there is to go back to."""

    def __init__(self) -> None:
        self.at = SimpleNamespace(state=State(step=1))

    def target(self, state: State, _: object) -> Any:
        return self.at if state.step == 3 else None

    def roll_back(self, state: State, *_: object) -> State:
        return replace(state, rollbacks=1)


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., tuple[State, Published, list[dict[str, Any]]]]:
    """Train from step 0 to the end, at checkpoints that hold nothing but what is played ahead."""

    def save(state: State, *arguments: Any) -> None:
        (tmp_path / f"{state.step}").mkdir()
        arguments[-1](tmp_path / f"{state.step}")

    watch = SimpleNamespace(
        check=lambda _: SimpleNamespace(metrics=dict, last_good_step=lambda: None),
        learning_rate_factor=lambda: 0.5,
        roll_back=lambda step: f"back to {step}",
    )

    def gone(lag: int, observer: Any) -> tuple[State, Published, list[dict[str, Any]]]:
        folder, run = run_of(lag, tmp_path / "runs")
        rollouts = Published(run)
        observer.rollouts = rollouts
        with closing(MetricsLog(folder.metrics_path)) as log:
            parts = {"guards": watch, "rollback": Back(), "checkpoints": SimpleNamespace(save=save)}
            state = loop_of(run, folder, rollouts, observer, log, **parts).run(State())
        return state, rollouts, folder.read_metrics()

    return gone


def test_a_run_that_goes_back_plays_anew_what_it_had_begun_with_what_it_has_gone_back_to(
    go: Callable[..., Any], tmp_path: Path
) -> None:
    state, rollouts, rows = go(1, Callback())
    assert (state.step, state.rollbacks) == (6, 1)
    assert versions(rollouts) == [0, 0, 1, 2, 3, 3, 3, 4]
    assert rollouts.played_with[::2] == [0, 0, 1, 2, 3, 4, 4, 5]
    assert [row["async/groups_dropped"] for row in rows] == [0, 0, 0, 4, 0, 0]
    assert [row["policy_lag_max"] for row in rows] == [0, 1, 1, 0, 1, 1]
    kept = {path.name: [group.number for group in read_groups(path, TASKS, "ahead")] for path in tmp_path.glob("[0-9]")}
    assert kept == {
        "1": [2, 3, 4, 5],
        "2": [4, 5, 6, 7],
        "3": [6, 7, 8, 9],
        "4": [8, 9, 10, 11],
        "5": [10, 11],
        "6": [],
    }


def test_what_was_lost_is_counted_in_the_step_in_which_it_was(go: Callable[..., Any]) -> None:
    class Losing(Callback):
        rollouts: Published

        def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
            self.rollouts.lost += step in (1, 4)

    _, _, rows = go(1, Losing())
    assert [row["workers_lost"] for row in rows] == [0, 1, 0, 0, 1, 0]


class EnoughError(Exception):
    pass


@pytest.mark.parametrize("resume", [True, False])
def test_a_run_that_goes_on_keeps_to_what_it_knew_and_has_what_it_had_played(
    resume: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that begins with a checkpoint of its own, and does not go on from it, has played nothing."""
    folder, run = run_of(1, tmp_path / "runs")
    rollouts, asked = Published(run), list[Any]()
    rollouts.models = SimpleNamespace(slow_model_warnings=list, device=torch.device("cpu"))  # type: ignore[attr-defined]
    state = State(step=3, tasks_drawn=7, excluded_tasks={"t2": "it ended its workers"})

    def opened(*arguments: Any) -> None:
        asked.extend([*arguments[2:], rollouts.now, dict(rollouts.excluded_tasks)])
        raise EnoughError

    start = SimpleNamespace(
        run=run, folder=folder, resume=resume, record=SimpleNamespace(path=tmp_path / "step_000003"),
        with_tasks=lambda state, _: state,
    )  # fmt: skip
    learners = SimpleNamespace(set_models=lambda _: None, load=lambda _: state)
    monkeypatch.setattr(training, "open_learner", lambda *_: nullcontext(learners))
    monkeypatch.setattr(training, "open_rollout_runner", lambda *_, **__: nullcontext(rollouts))
    monkeypatch.setattr(training, "load_training_tasks", lambda _: TASKS)
    monkeypatch.setattr(training, "open_source", opened)
    with pytest.raises(EnoughError):
        training._train(cast("Any", start), CallbackList([]), 0)
    assert asked == [state, start.record.path if resume else None, 3, dict(state.excluded_tasks)]


def test_what_a_validation_played_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    run, told = ahead_of(1), list[Any]()
    monkeypatch.setattr(step_metrics, "read_tasks", lambda *_: TASKS)
    monkeypatch.setattr(
        step_metrics, "evaluate", lambda *_, **__: (SimpleNamespace(accuracy=0.5, reward=None), ["episodes"])
    )
    gathering = cast("RolloutSource", SimpleNamespace(exclude_validation=told.extend))
    assert step_metrics.validate(cast("RolloutRunner", fake(run)), gathering) == {"validation_accuracy": 0.5}
    assert told == ["episodes"]
