"""What a learner reports of a step: a record of each action's credit, and metrics over several phases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marft.common.types import Sample
from marft.config.interfaces.credit import CreditInputs, CreditOutput, Values
from marft.trainer import learner as learner_module
from marft.trainer.learner import CreditedBatch, UpdateLog
from marft.trainer.learner_metrics import MetricAccumulator
from marft.trainer.update import PolicyUpdater
from marft.trainer.update_schedules import Simultaneous
from tests.episodes import make_action
from tests.learners import episodes
from tests.learners import recipe as of
from tests.marft.trainer.test_learner import START, NewEachTime, OneByOne, learner_of


class TestCreditRecords:
    """Of a frozen reasoner and an actor in training, whose two actions share a key, as forks' do; one is a sample."""

    @staticmethod
    def records(*, updated: bool = True, grouped: bool = True, critic: bool = True) -> list[dict[str, Any]]:
        (one,) = episodes(1)
        actions = (
            make_action("reasoner"), make_action("actor", index=1, log_probs=(-1.5, -2.5)), make_action("actor", index=2)
        )  # fmt: skip
        batch = [replace(one, actions=actions)]
        rows = [np.array([float(n)]) for n in range(3)]
        values = Values([row + 10 for row in rows], [{}]) if critic else None
        credit = CreditOutput(rows, groups=["", "t actor", "u actor"] if grouped else ())
        samples = [Sample(actions[1], 1.0, np.array([0.5]))]
        meter, key = MetricAccumulator(), actions[1].key
        meter.entropies[key], meter.gradients[key] = np.array([0.25, 0.75]), 3.0
        log = UpdateLog({key: np.array([-1.0, -3.0])}, MetricAccumulator(), meter) if updated else None
        credited = CreditedBatch(batch, CreditInputs(batch, "action", values), credit, samples, rows[1:2])
        found = learner_module._build_records(credited, log)
        assert all(record.episode is batch[0] for record in found)
        assert all(record.action is action for record, action in zip(found, actions, strict=True))
        fields = ("group", "raw_advantages", "values", "advantages", "entropy", "log_prob_diff", "gradient_size")
        return [
            {
                name: value.tolist() if isinstance(value := getattr(record, name), np.ndarray) else value
                for name in fields
            }
            for record in found
        ]

    def test_hold_for_every_action_what_was_learned_from_it(self) -> None:
        nothing = dict.fromkeys(("advantages", "entropy", "log_prob_diff", "gradient_size"))
        learned = {"advantages": [0.5], "entropy": [0.25, 0.75], "log_prob_diff": [0.5, -0.5], "gradient_size": 3.0}
        assert self.records() == [
            {"group": "", "raw_advantages": [0.0], "values": [10.0], **nothing},
            {"group": "t actor", "raw_advantages": [1.0], "values": [11.0], **learned},
            {"group": "u actor", "raw_advantages": [2.0], "values": [12.0], **nothing},
        ]

    def test_of_a_step_without_an_update_have_its_credit_alone(self) -> None:
        for record in self.records(updated=False):
            assert {record[name] for name in ("advantages", "entropy", "log_prob_diff", "gradient_size")} == {None}

    def test_without_groups_or_a_critic_have_neither(self) -> None:
        assert [record["group"] for record in self.records(grouped=False)] == [""] * 3
        assert [record["values"] for record in self.records(critic=False)] == [None] * 3


class TestMetricsOfSeveralPhases:
    @staticmethod
    def metrics(
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        schedule: Simultaneous,
        measured: Mapping[str, float],
        *changes: str,
    ) -> dict[str, float]:
        """Of a step in which each phase measures the same, but for losses of 1, 2, …, one in each."""
        mine = learner_of(of(tmp_path, "grpo", *changes))
        mine.schedule = schedule
        losses = iter((1.0, 2.0, 3.0))

        def run(self: PolicyUpdater, *_: object) -> None:
            self.accumulator.add("policy_loss", next(losses))
            for name, value in measured.items():
                self.accumulator.add(name, value)

        monkeypatch.setattr(PolicyUpdater, "run", run)
        return mine.learn(episodes(2), START, play_again=lambda: episodes(2, seed=7))

    @pytest.mark.parametrize("schedule", [OneByOne(), NewEachTime()])
    def test_are_means_over_them_and_over_rounds_of_new_episodes(
        self, schedule: Simultaneous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.metrics(tmp_path, monkeypatch, schedule, {})["policy_loss"] == 1.5

    @pytest.mark.parametrize("schedule", [OneByOne(), NewEachTime()])
    def test_are_sums_for_the_kl_of_the_team_and_for_stops(
        self, schedule: Simultaneous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        measured = {"team_kl": 0.25, "kl_stops": 1.0}
        limited = self.metrics(tmp_path, monkeypatch, schedule, measured, "--algorithm.team_kl", "1.0")
        assert (limited["team_kl"], limited["kl_stops"]) == (0.5, 2.0)
        assert "team_kl" not in self.metrics(tmp_path, monkeypatch, schedule, {})

    def test_have_one_effective_sample_size(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """(2 · 3)² / (2 · 4 · 2 · 3)."""
        measured = {"agents/actor/ess/weights": 3.0, "agents/actor/ess/squares": 3.0, "agents/actor/ess/units": 4.0}
        metrics = self.metrics(tmp_path, monkeypatch, OneByOne(), measured)
        assert metrics["ess"] == metrics["agents/actor/ess"] == pytest.approx(36 / 48)
