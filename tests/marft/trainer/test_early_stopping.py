"""Early stopping: when it stops a run, and what it remembers of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marft.config import RunSettings
from marft.runs.checkpoints import read_callback_states
from marft.runs.run_folder import RunFolder
from marft.trainer import loop
from marft.trainer.early_stopping import EarlyStopping
from marft.trainer.train import train
from tests.marft.trainer.test_callbacks import STOPPING, newest, run_with


class TestEarlyStopping:
    def told(self, stopping: EarlyStopping, *values: float) -> EarlyStopping:
        for step, value in enumerate(values, 1):
            stopping.on_step_end(step, {"reward": value})
        return stopping

    @pytest.mark.parametrize(
        ("values", "stops"),
        [
            ((), False),
            ((0.1, 0.2, 0.3), False),
            ((0.3, 0.2), False),
            ((0.3, 0.2, 0.3), True),
            ((-5.0, -6.0, -4.0, -4.0), False),
            ((0.3, 0.2, float("nan"), float("nan")), False),
            ((float("nan"),) * 5, False),
            ((float("inf"), 0.1, 0.2, 0.3), False),
        ],
    )
    def test_stops_once_nothing_was_gained_for_long_enough(self, values: tuple[float, ...], stops: bool) -> None:
        assert self.told(EarlyStopping(metric="reward", patience=2), *values).wants_stop() is stops

    def test_a_gain_that_is_too_small_is_none(self) -> None:
        assert self.told(EarlyStopping(metric="reward", patience=2, min_delta=0.1), 0.0, 0.05, 0.1).wants_stop()
        assert not self.told(EarlyStopping(metric="reward", patience=2, min_delta=0.1), 0.0, 0.05, 0.11).wants_stop()

    def test_a_metric_that_is_missing_counts_for_nothing(self) -> None:
        stopping = EarlyStopping(metric="validation_reward", patience=1)
        assert not self.told(stopping, 0.3, 0.2, 0.1).wants_stop()
        assert stopping.state_dict() == {}

    def test_remembers_how_long_it_has_waited(self) -> None:
        before = self.told(EarlyStopping(metric="reward", patience=3), 0.5, 0.4)
        state = json.loads(json.dumps(before.state_dict()))
        after = EarlyStopping(metric="reward", patience=3)
        after.load_state_dict(state)
        assert not self.told(after, 0.5).wants_stop()
        assert self.told(after, 0.5).wants_stop()
        with pytest.raises(ValueError, match="early_stopping: the checkpoint holds"):
            after.load_state_dict({"best": "high"})

    def test_stops_a_run_which_goes_on_with_more_patience(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Validated every other step; the steps between do not count."""
        accuracies = {2: 0.5, 4: 0.5, 6: 0.25, 8: 0.25}
        folder = RunFolder(tmp_path / "test")
        monkeypatch.setattr(
            loop, "validate", lambda *_: {"validation_accuracy": accuracies[len(folder.read_metrics()) + 1]}
        )

        def run_of(patience: int) -> RunSettings:
            stopping = {"name": STOPPING, "metric": "validation_accuracy", "patience": patience}
            return run_with(tmp_path, stopping, steps=8, evaluation={"every": 2}, checkpoints={"every": 3})

        RunFolder.create(run_of(1))
        assert train(run_of(1), folder).step == 4
        assert read_callback_states(newest(folder).path)[STOPPING] == {"best": 0.5, "steps": 1}
        assert train(run_of(1), folder, resume=True).step == 4, "it has enough before it begins"
        assert train(run_of(2), folder, resume=True).step == 6
        assert read_callback_states(newest(folder).path)[STOPPING] == {"best": 0.5, "steps": 2}
        assert train(run_of(9), folder, resume=True).step == 8
