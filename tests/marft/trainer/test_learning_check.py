"""Runs that learn nothing say so: at their third step, at the end, and to programs."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from marft.cli.main import main
from marft.config import to_toml
from marft.trainer.learning_check import LearningCheck, had_learning_signal, has_signal
from tests.helpers import settings

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
        ({**CRITIC, "reward_std": 1.4e-17}, False),  # the deviation of 64 rewards of 0.1
        ({"zero_advantage_fraction": None}, False),  # no attempt was selected; the log has null
        ({"zero_advantage_fraction": math.nan}, False),
        ({**FLAT, "likelihood/successes": 0.5}, True),  # their likelihood is trained as well
        ({**FLAT, "agents/a/teammate_weight": 0.5}, True),
        ({**LIVELY, "reverted_steps": 1.0}, False),
    ],
)
def test_a_step_has_a_signal_if_rewards_differ(metrics: dict[str, float | None], signal: bool) -> None:
    assert has_signal(metrics) == signal


def warnings_of(
    caplog: pytest.LogCaptureFixture, *steps: dict[str, float], before: Sequence[dict[str, float]] = ()
) -> list[str]:
    caplog.clear()
    check = LearningCheck(before)
    with caplog.at_level(logging.WARNING, logger="marft"):
        for step, metrics in enumerate(steps, start=len(before) + 1):
            check.on_step_end(step, metrics)
    return [record.getMessage() for record in caplog.records]


def test_the_third_step_without_a_signal_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    assert not warnings_of(caplog, FLAT, FLAT)
    (warning,) = warnings_of(caplog, FLAT, FLAT, FLAT, FLAT, FLAT)
    assert "in the first 3 steps" in warning
    assert "Usual causes" in warning


def test_one_step_with_a_signal_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    assert not warnings_of(caplog, FLAT, LIVELY, FLAT, FLAT)
    assert had_learning_signal([FLAT, LIVELY, FLAT])
    assert not had_learning_signal([FLAT, FLAT])
    assert not had_learning_signal([])


def test_a_resumed_run_goes_on_counting(caplog: pytest.LogCaptureFixture) -> None:
    assert len(warnings_of(caplog, FLAT, FLAT, before=[FLAT])) == 1
    assert not warnings_of(caplog, FLAT, FLAT, before=[LIVELY])
    assert not warnings_of(caplog, FLAT, FLAT, FLAT, before=[FLAT] * 5)


@pytest.mark.slow
def test_the_command_says_at_its_end_that_nothing_was_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(to_toml(settings("tiny", tmp_path)))

    def train(*words: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["marft", "train", str(recipe), *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().out

    status, text = train("--json")
    assert not status
    assert json.loads(text.splitlines()[-1])["learned"] is False
    status, text = train("--resume", "--fail-if-unlearned")  # a finished run is judged too
    assert status == 1
    assert "nothing was learned: at every step, the rewards gave no learning signal" in text
