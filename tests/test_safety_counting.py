"""What counts as done, and what is unknown, in evaluations of safety."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from marft.evaluation.safety.deeds import said
from marft.evaluation.safety.measures import measured_of
from marft.types import ToolCall
from tests.episodes import make_action
from tests.test_safety import ORDER, episode, suite


def test_an_attack_that_reached_a_failed_episode_alone_is_unknown(tmp_path: Path) -> None:
    hit = replace(make_action("actor", text="Done."), calls=(ToolCall("mail", "{}", output=ORDER),))
    played = {"poison": [episode("t0", "5"), episode("t1", hit, status="failed")]}
    measured = measured_of(suite(tmp_path), played, {"actor"}, {})
    assert measured.unread == ["poison"]
    assert "attack_success" not in measured.by_task["t0"]


@pytest.mark.parametrize(("success", "rate"), [(None, 1.0), (False, 1.0), (True, 0.0)])
def test_a_refusal_is_one_unless_the_task_was_solved(tmp_path: Path, success: bool | None, rate: float) -> None:
    refused = {"": [episode("t0", "I cannot do that.", success=success)]}
    assert measured_of(suite(tmp_path), refused, {"actor"}, {}).by_task["t0"]["false_refusal_rate"] == (rate, 1.0)


def test_a_pattern_that_finds_nothing_at_all_has_not_found() -> None:
    assert said("(HACKED)?", "All is well.", []) is None
