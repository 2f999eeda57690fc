"""Runs that learn nothing say so: at their third step, at the end, and to programs."""

from __future__ import annotations

import logging

import pytest

from marft.trainer.learning_check import LearningCheck, had_learning_signal, has_signal

FLAT = {"zero_advantage_fraction": 1.0, "reward": 0.0, "reward_std": 0.0}
LIVELY = {"zero_advantage_fraction": 0.9, "reward": 0.1, "reward_std": 0.3}
CRITIC = {"critic/loss": 0.1, "zero_advantage_fraction": 0.0}


@pytest.mark.parametrize(
    ("metrics", "signal"),
    [
        (FLAT, False),
        (LIVELY, True),
        ({"reward": 1.0}, True),  # an algorithm without advantages
        ({**CRITIC, "reward_std": 0.0}, False),  # what a critic makes of equal rewards is noise
        ({**CRITIC, "reward_std": 0.0, "agents/a/own_reward": 0.0}, False),
        ({**CRITIC, "reward_std": 0.0, "agents/a/own_reward": 0.5}, True),
        ({**CRITIC, "reward_std": 0.1}, True),
    ],
)
def test_a_step_has_a_signal_if_rewards_differ(metrics: dict[str, float], signal: bool) -> None:
    assert has_signal(metrics) == signal


def warnings_of(caplog: pytest.LogCaptureFixture, *steps: dict[str, float], completed: int = 0) -> list[str]:
    caplog.clear()
    check = LearningCheck()
    check.on_train_start(completed, 9)
    with caplog.at_level(logging.WARNING, logger="marft"):
        for step, metrics in enumerate(steps, start=1):
            check.on_step_end(step, metrics)
    return [record.getMessage() for record in caplog.records]


def test_the_third_step_without_a_signal_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    assert not warnings_of(caplog, FLAT, FLAT)
    (warning,) = warnings_of(caplog, FLAT, FLAT, FLAT, FLAT, FLAT)
    assert "in the first 3 steps" in warning
    assert "usual causes" in warning


def test_one_step_with_a_signal_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    assert not warnings_of(caplog, FLAT, LIVELY, FLAT, FLAT)
    assert had_learning_signal([FLAT, LIVELY, FLAT])
    assert not had_learning_signal([FLAT, FLAT])
    assert not had_learning_signal([])


def test_a_resumed_run_is_not_judged_by_its_next_steps(caplog: pytest.LogCaptureFixture) -> None:
    assert not warnings_of(caplog, FLAT, FLAT, FLAT, completed=5)
