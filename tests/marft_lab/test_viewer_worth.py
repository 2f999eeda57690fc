"""What ``marft worth`` found, as the viewer tells it: whole, of earlier versions, damaged, not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marft_lab.team_evaluation.counterfactual import ActionContribution
from marft_lab.team_evaluation.report import build_timeline
from tests.views import asked, attempt, client, make_run

VALUE = {"value": 0.5, "interval": [0.25, 0.75], "difference": None, "difference_interval": None}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "one", steps=1)


def write(run: Path, text: str) -> None:
    (run / "worth").mkdir(exist_ok=True)
    (run / "worth" / "worth.json").write_text(text)


def shown(**changes: Any) -> dict[str, Any]:
    """An episode of two actions, of which the second was sampled again."""
    episode = attempt(1, 1, said="half \ud83d")
    again = [ActionContribution(episode.actions[1].id, "actor", 1.0, [0.0, 0.5])]
    return {**build_timeline(episode, again), **changes}


def test_it_is_told_with_its_episodes_and_who_contributed_what(run: Path) -> None:
    row = {"part": "team", "name": "team", "values": {"accuracy": VALUE}, "tasks": 4, "tokens": 80.0, "seconds": None}
    write(run, json.dumps({"headline": "the team is better", "rows": [row], "shown": [shown()], "episodes": [{}]}))
    mine = client(run)
    said = asked(mine, "runs/one/worth")
    assert asked(mine, "runs")["runs"][0]["worth"] == (run / "worth" / "worth.json").stat().st_mtime
    assert (said["problem"], said["found"]["headline"]) == ("", "the team is better")
    assert said["found"]["rows"][0]["values"]["accuracy"] == VALUE
    (one,) = said["found"]["shown"]
    assert [(action["agent"], action["contribution"], action["resampled"]) for action in one["actions"]] == [
        ("reasoner", None, []),
        ("actor", 0.75, [0.0, 0.5]),
    ]
    assert one["actions"][0]["text"] == "Plan 1.1 half ?"
    assert one["actions"][1]["sees"] == [one["actions"][0]["id"]]
    assert (one["task"], one["reward"]) == ("t/0", attempt(1, 1).total_reward)


def test_where_nobody_asked_the_command_is_told(run: Path) -> None:
    said = asked(client(run), "runs/one/worth")
    assert (said["found"], said["problem"]) == (None, "")
    assert said["command"] == f"marft worth {run}"
    assert asked(client(run), "runs")["runs"][0]["worth"] == 0


def test_what_earlier_versions_wrote_has_no_episodes_to_draw(run: Path) -> None:
    write(run, '{"headline": "the team is better", "episodes": [{"task": "t"}]}')
    assert asked(client(run), "runs/one/worth")["found"]["shown"] is None


@pytest.mark.parametrize(
    "text",
    ["[", "[]", "", '{"rows": [{"name": 3}]}', '{"headline": {}}', "[" * 10_000, '{"measure": "luck"}',
     json.dumps({"shown": [shown(reward=float("nan"))]}), json.dumps({"shown": [{"actions": [{}]}]})],
)  # fmt: skip
def test_what_is_damaged_is_named(run: Path, text: str) -> None:
    write(run, text)
    said = asked(client(run), "runs/one/worth")
    assert said["found"] is None
    assert "worth.json is damaged (" in said["problem"]
    assert "ask again" in said["problem"]
