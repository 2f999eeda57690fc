"""``marft worth`` and ``marft_lab.worth``: on runs that were trained, and with what cannot be asked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import marft
import marft_lab
from marft.config import RunSettings
from marft.runs.run_files import remove_run
from marft.runs.run_folder import RunFolder
from marft_serve.gateway.client import Client
from tests.gateways import ask
from tests.helpers import recipe, settings
from tests.marft.cli.test_cli import run
from tests.marft.cli.test_terminal import told
from tests.nights import BY_NIGHT
from tests.runs import finished


def solve(task: Any, clients: Mapping[str, Client]) -> str:
    """A program as a team."""
    return ask(clients["actor"], ask(clients["reasoner"], task.prompt).said).said


def upside_down(text: str) -> str:
    return text[::-1]


@BY_NIGHT
@pytest.mark.slow
def test_it_plays_every_part_shows_it_and_goes_with_its_run(
    capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
) -> None:
    folder = mine[1]
    asked = ("worth", str(folder.path), "--tasks", "3", "--resamples", "1", "--attempts", "2")
    paraphrase = ("--paraphrase", "tests.marft_lab.test_worth_command:upside_down")
    text = run(capsys, *asked, *paraphrase)
    assert "episodes of 3 held-out tasks (team 3, single actor alone 6, " in text
    for name in (
        "actor alone", "actor alone, untuned", "swapped: reasoner ⇄ actor", "reasoner unheard", "actor untuned", "silence",
        "shuffled", "reasoner paraphrased", "reasoner of one checkpoint with actor of another", "Actions sampled again",
    ):  # fmt: skip
        assert name in text
    saved = json.loads((folder.worth / "worth.json").read_text())
    assert saved["checkpoint"] == "step_000002"
    assert [len(episode["actions"]) for episode in saved["episodes"]] == [2, 2, 2]
    assert [[action["agent"] for action in one["actions"]] for one in saved["shown"]] == [["reasoner", "actor"]] * 3
    arms = {path: path.stat().st_mtime_ns for path in (folder.worth / "arms").iterdir()}
    run(capsys, *asked, *paraphrase)
    assert {path: path.stat().st_mtime_ns for path in (folder.worth / "arms").iterdir()} == arms
    again = json.loads((folder.worth / "worth.json").read_text())
    assert again == saved
    in_a_process = run(capsys, *asked, *paraphrase, "--rerun", "--rollout.workers", "1")
    assert "reasoner unheard" in in_a_process
    processed = json.loads((folder.worth / "worth.json").read_text())
    for table in (processed, saved):
        for row in [*table["rows"], *(row for matrix in table["matrices"] for rows in matrix["rows"] for row in rows)]:
            del row["seconds"]
        for action in (action for one in table["shown"] for action in one["actions"]):
            del action["started"], action["ended"]
    assert processed == saved
    assert remove_run(folder.path) == []
    assert not folder.worth.exists()


@pytest.mark.slow
def test_quiet_it_says_what_came_of_it_and_to_programs_one_object_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, mine: tuple[RunSettings, RunFolder]
) -> None:
    folder = mine[1]
    asked = ("worth", str(folder.path), "--only", "leave-out", "--tasks", "2")
    whole, quiet = run(capsys, *asked), run(capsys, *asked, "--quiet")
    plan = "about 8 episodes of 2 held-out tasks"
    assert plan in whole
    assert plan not in quiet
    assert quiet in whole, "tables, the answer, and where the page is"
    assert quiet.split(" see ")[-1].strip() == str(folder.worth / "worth.html")
    *notes, done = told(capsys, monkeypatch, *asked)
    assert {note["event"] for note in notes} == {"note"}
    assert plan in notes[0]["text"]
    saved = json.loads((folder.worth / "worth.json").read_text())
    assert {**done, "rows": None} == {
        "event": "done", "run": str(folder.path), "checkpoint": "step_000002", "headline": saved["headline"],
        "report": str(folder.worth / "worth.html"), "rows": None,
    }  # fmt: skip
    assert done["rows"] == saved["rows"]
    assert "exclude each other" in run(capsys, *asked, "--quiet", "--json", status=2)


@BY_NIGHT
@pytest.mark.slow
def test_a_run_of_one_agent_stands_beside_the_team(trained: RunFolder, tmp_path: Path) -> None:
    one = {
        "policies": {"solver": {"model": "base"}},
        "agents": [{"role": "solver", "policy": "solver", "sampling": {"max_new_tokens": 4}}],
    }
    table = recipe(output=tmp_path, **one)
    single = marft.train(table, {"training.steps": 1})
    shutil.copytree(trained.path, tmp_path / "team")
    found = marft_lab.worth(tmp_path / "team", tasks=2, attempts=3, only="single", single=single.path)
    names = [row.name for row in found.rows]
    assert str(single.path) in names
    assert any(name.startswith(f"{single.path}, best of") for name in names)
    with pytest.raises(ValueError, match="a run of 2 agents, and one of a single agent is needed"):
        marft_lab.worth(tmp_path / "team", single=trained.path)
    other = RunFolder.create(settings("tiny", tmp_path, "--name", "other", "--environment.seed", "5", **one))
    with pytest.raises(ValueError, match="does not hold out 2 of the 2 tasks, such as 'chain_sum/"):
        marft_lab.worth(tmp_path / "team", tasks=2, single=other.path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint": "step_000099"}, "no checkpoint 'step_000099' in .*; there are: last, best, step_000001"),
        ({"crossed": ["worst"]}, "no checkpoint 'worst'"),
        ({"only": "everything"}, "'everything' is none of single, swap"),
        ({"only": 3}, "only is a list of names"),
        ({"tasks": -1}, "tasks is a whole number from 0 on"),
        ({"resamples": 0}, "resamples is a whole number from 1 on"),
        ({"samples": 0}, "samples is a whole number from 1 on"),
        ({"single": 3}, "single: a run is named by its folder"),
        ({"single": "nowhere"}, "no run at nowhere"),
        ({"paraphrase": 3}, "paraphrase is a text"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_played(
    trained: RunFolder, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        marft_lab.worth(trained.path, **options)
    assert not trained.worth.exists()


def test_a_recipe_alone_was_not_trained(trained: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="asked of a run that was trained"):
        marft_lab.worth("demo")
    assert "no run at demo" in run(capsys, "worth", "demo", status=2)
    assert "did you mean '--resamples'" in run(capsys, "worth", str(trained.path), "--resample", "3", status=2)


@pytest.mark.slow
def test_a_program_is_swapped_and_untuned_but_neither_alone_nor_unheard(tmp_path: Path) -> None:
    """Its agents have no prompts but those that it makes, and it passes messages on itself."""
    organization = {"organization": "program", "call": "tests.marft_lab.test_worth_command:solve"}
    changes: dict[str, Any] = {"team": organization}
    _, folder = finished(tmp_path)
    folder.write_config(settings("tiny", tmp_path, **changes))
    found = marft_lab.worth(folder.path, tasks=1, resamples=1, crossed=["last"])
    names = [row.name for row in found.rows]
    assert "swapped: reasoner ⇄ actor" in names
    assert "reasoner untuned" in names
    assert not any("alone" in name or "unheard" in name or "shuffled" in name for name in names)
    said = " ".join(text for _, text in found.notes)
    assert "none can be asked alone" in said
    assert "they cannot be changed" in said
    assert found.counterfactual is not None
    assert found.counterfactual.failed == 0
    assert [share.agent for share in found.counterfactual.shares] == ["reasoner", "actor"]
