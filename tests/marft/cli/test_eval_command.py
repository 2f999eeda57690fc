"""``marft eval``: what it says of where things are, to people and programs, and what it does where nothing can be written."""

from __future__ import annotations

import errno
import os
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from marft.evaluation import report
from marft.runs.export.exporter import export_run
from marft.runs.run_folder import RunFolder
from tests.marft.cli.test_terminal import told
from tests.marft.evaluation.test_kept_evaluations import lengths
from tests.marft.evaluation.test_scenarios import command, written
from tests.nights import BY_NIGHT

SHORT = ("--mode", "greedy", "--tasks", "2")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(lengths(tmp_path / "runs", "--name", "mine"))


def test_it_says_where_evaluations_lie_and_of_a_run_where_its_report_is(
    tmp_path: Path, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = written(tmp_path)
    assert command("eval", run.path, recipe, "--checkpoint", "base", *SHORT) == 0
    said = capsys.readouterr().out.splitlines()
    of_run, of_recipe = (line for line in said if line.startswith("saved in"))
    assert of_run == f"saved in {run.evaluations}; see {run.report_path}"
    assert run.report_path.is_file()
    kept = RunFolder(tmp_path / "runs" / "evaluated" / "test")
    assert of_recipe == f"saved in {kept.evaluations}"
    assert (kept.evaluations / "base-greedy.json").is_file()
    assert not kept.report_path.exists()


def test_what_no_report_shows_is_said_to_be_in_none(
    tmp_path: Path, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few.json"
    assert command("scenarios", written(tmp_path), "--output", few, "--tasks", "2", "--mode", "greedy") == 0
    capsys.readouterr()
    assert command("eval", run.path, "--checkpoint", "base", "--scenarios", few) == 0
    assert f"saved in {run.evaluations}" in capsys.readouterr().out.splitlines()


def test_programs_are_told_of_every_target_and_where_each_is_kept(
    tmp_path: Path, run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = written(tmp_path)
    *evaluations, done = told(
        capsys, monkeypatch, "eval", str(run.path), str(recipe), "--checkpoint", "base", "--mode", "greedy,sampled",
        "--tasks", "2", "--attempts", "2",
    )  # fmt: skip
    assert [(one["target"], one["mode"]) for one in evaluations] == [
        (str(target), mode) for target in (run.path, recipe) for mode in ("greedy", "sampled")
    ]
    assert {(one["tasks"], one["attempts"], one["split"]) for one in evaluations} == {(2, 2, "test")}
    answers = done.pop("answers")
    assert {**done, "runs": [Path(path).name for path in done["runs"]]} == {
        "event": "done", "evaluations": 4, "runs": ["mine", "test"],
    }  # fmt: skip
    assert [(one["target"], one["mode"], one["question"], one["measure"]) for one in answers] == [
        (str(target), mode, "value", "accuracy") for target in (run.path, recipe) for mode in ("greedy", "sampled")
    ]
    assert [one["value"] for one in answers] == [one["accuracy"] for one in evaluations]


def test_the_last_lines_say_what_the_evaluation_has_shown(
    tmp_path: Path, run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("eval", run.path, written(tmp_path), "--checkpoint", "base", *SHORT) == 0
    of_run, of_recipe = capsys.readouterr().out.splitlines()[-2:]
    assert of_run.startswith("mine, greedy: the untuned base solves ")
    advice = f"; to compare a trained checkpoint with it, evaluate both:  marft eval {run.path} --checkpoint base,last"
    assert of_run.endswith(advice)
    assert of_recipe.startswith("recipe.toml, greedy: the team of this recipe, untrained, solves ")


@pytest.mark.slow
def test_of_a_trained_run_they_say_whether_training_helped_and_messages_matter(
    trained: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = shutil.copytree(trained.path, tmp_path / "mine")
    words = ("eval", str(mine), "--mode", "greedy,sampled", "--tasks", "4", "--shuffle-messages")
    assert command(*words) == 0
    shown = capsys.readouterr().out.splitlines()
    tables = shown[: next(number for number, line in enumerate(shown) if line.startswith("saved in"))]
    assert max(map(len, tables)) <= 100
    told_lines = [line for line in shown if line.startswith(("Greedy: ", "Sampled: "))]
    assert ["messages" in line for line in told_lines] == [False, False, True, True]
    assert all("after" in line and "the untuned base" in line for line in told_lines[:2])
    *_, done = told(capsys, monkeypatch, *words)
    assert [answer["text"] for answer in done["answers"]] == told_lines


def test_a_recipe_is_kept_with_its_evaluations_as_it_was_evaluated_last(tmp_path: Path) -> None:
    recipe, kept = written(tmp_path), RunFolder(tmp_path / "runs" / "evaluated" / "test")
    for seed in ("3", "4"):
        assert command("eval", recipe, *SHORT, "--seed", seed) == 0
        assert tomllib.loads(kept.config_path.read_text(encoding="utf-8"))["seed"] == int(seed)
    before = kept.config_path.stat().st_ino
    assert command("eval", recipe, *SHORT, "--seed", "4") == 0
    assert kept.config_path.stat().st_ino == before, "the same is not written again"


@pytest.mark.parametrize(("number", "goes_on"), [(errno.EROFS, True), (errno.EACCES, True), (errno.ENOSPC, False)])
def test_a_report_that_may_not_be_written_is_said_and_any_other_error_ends_it(
    run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, goes_on: bool
) -> None:
    def write(_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(report, "write_report", write)
    assert (command("eval", run.path, "--checkpoint", "base", *SHORT) == 0) is goes_on
    said = capsys.readouterr()
    assert (f"nothing can be written in {run.path} ({os.strerror(number)})" in said.out) is goes_on
    assert ("base" in said.out) is goes_on
    assert (os.strerror(number) in said.err) is not goes_on


@pytest.mark.slow
def test_an_export_is_called_by_the_checkpoint_that_it_is_of(
    trained: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    team = export_run(trained, "step_000001", tmp_path / "team")
    words = ("eval", str(team), *SHORT, "--output", str(tmp_path))
    *_, one, done = told(capsys, monkeypatch, *words)
    assert one["checkpoint"] == "step_000001"
    assert done["runs"] == [str(tmp_path / "evaluated" / "team")]


@BY_NIGHT
@pytest.mark.slow
def test_of_a_checkpoints_folder_that_checkpoint_alone_is_evaluated(
    trained: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = shutil.copytree(trained.path, tmp_path / "mine")
    *evaluations, _ = told(capsys, monkeypatch, "eval", str(mine / "checkpoints" / "step_000001"), *SHORT)
    assert [one["checkpoint"] for one in evaluations] == ["step_000001"]
