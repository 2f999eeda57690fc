"""What is asked of ``marft.train`` and ``marft.evaluate`` is what training and evaluating are asked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import marft
from marft.config import RunSettings
from marft.evaluation.session import EvaluationPlan, StorageOptions
from marft.runs.run_folder import RunFolder
from tests.helpers import recipe
from tests.marft.cli.test_python import BOARD, Watching, as_in_a_notebook


def folder_of(output: Path, **changes: Any) -> RunFolder:
    """A run of which nothing was trained yet."""
    return RunFolder.create(marft.load_recipe(recipe(output=output), **changes))


kept: list[StorageOptions | None] = []  # where each evaluation was to be kept


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What evaluating is asked for; it finds something once for each name."""
    asked: list[tuple[Any, ...]] = []
    kept.clear()

    def evaluate(run: RunSettings, folder: RunFolder | None, plan: EvaluationPlan, *_: Any, **more: Any) -> list[Any]:
        asked.append((run, plan.checkpoints, plan.modes, plan.tasks, plan.shuffled_too))
        kept.append(more["storage"])
        return [SimpleNamespace(name=name, as_json=lambda name=name: {"checkpoint": name}) for name in plan.checkpoints]

    monkeypatch.setattr("marft.evaluation.session.evaluate_checkpoints", evaluate)
    return asked


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What training is asked for; it does nothing."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("marft.trainer.train.train", lambda run, folder, **rest: asked.append({"run": run, **rest}))
    monkeypatch.setattr(
        "marft.evaluation.report.write_report", lambda folder: folder.report_path.write_text("a report")
    )
    return asked


def test_an_evaluation_is_of_what_was_asked_and_else_of_what_the_recipe_says(evaluated: list[tuple[Any, ...]]) -> None:
    run = marft.load_recipe(recipe(), evaluation={"tasks": 7, "modes": ["sampled"]})
    marft.evaluate(run)
    marft.evaluate(run, tasks=3, modes=["greedy"], shuffle_messages=True, checkpoints=["last"])
    assert [rest for _, *rest in evaluated] == [
        [["base"], ("sampled",), 7, False],
        [["base"], ("greedy",), 3, True],  # of a recipe there is nothing else
    ]


def test_what_is_found_of_a_run_is_saved_in_its_folder(tmp_path: Path, evaluated: list[tuple[Any, ...]]) -> None:
    folder = folder_of(tmp_path)
    marft.evaluate(folder.path)
    marft.load_run(folder.path).evaluate(checkpoints=["best"])
    assert [names for _, names, *_ in evaluated] == [["base", "last"], ["best"]]
    assert all(keeping is not None for keeping in kept)
    marft.evaluate(folder.path, rerun=True)
    assert kept == [
        StorageOptions(folder.evaluations),
        StorageOptions(folder.evaluations),
        StorageOptions(folder.evaluations, overwrite=True),
    ]


def test_what_is_given_again_takes_the_place_of_what_was_given(
    tmp_path: Path, evaluated: list[tuple[Any, ...]]
) -> None:
    board, other = as_in_a_notebook(BOARD, "Board"), as_in_a_notebook(BOARD, "Board")
    read = marft.load_recipe(recipe(output=tmp_path), environment=board)
    assert type(marft.load_recipe(read, given=[other]).environment) is other
    run = marft.Run(RunFolder.create(read), (board,))
    run.evaluate()
    run.evaluate(given=[other])
    assert [type(settings.environment) for settings, *_ in evaluated] == [board, other]


def test_changes_by_key_come_after_those_in_a_table() -> None:
    assert marft.load_recipe("demo", {"seed": 3, "training.steps": 5}, seed=4).seed == 4


def test_a_recipe_in_python_has_its_files_in_the_folder_that_it_is_read_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.csv").write_text("question,answer\n1,2\n")
    monkeypatch.chdir(tmp_path)
    read = marft.load_recipe(recipe(environment={"name": "table", "path": "mine.csv"}))
    assert read.environment.path == str(tmp_path / "mine.csv")  # type: ignore[attr-defined]


class TestTraining:
    def test_it_is_told_what_was_asked_and_leaves_a_report(
        self, tmp_path: Path, trained: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        board, watching = as_in_a_notebook(BOARD, "Board"), Watching()
        folder_of(tmp_path)
        run = marft.train(
            recipe(output=tmp_path), environment=board, overwrite=True, callbacks=[watching], start_from="a/checkpoint"
        )
        assert {key: trained[0][key] for key in ("resume", "start_from", "overwrite", "callbacks")} == {
            "resume": False, "start_from": Path("a/checkpoint"), "overwrite": True, "callbacks": [watching],
        }  # fmt: skip
        assert run.given == (board,)
        assert run.folder.report_path.read_text() == "a report"
        marft.train(tmp_path / "test", resume=True)
        assert (trained[1]["resume"], trained[1]["start_from"]) == (True, None)
        (callback,) = trained[1]["callbacks"]
        with pytest.warns(UserWarning, match="mind this"):
            callback.on_note("mind this")

    def test_what_cannot_be_trained_is_refused_before_anything_is_loaded(
        self, tmp_path: Path, trained: list[dict[str, Any]]
    ) -> None:
        frozen = {name: {"model": "base", "train": "frozen"} for name in ("reasoner", "actor")}
        with pytest.raises(ValueError, match="all are frozen"):
            marft.train(recipe(output=tmp_path, policies=frozen))
        with pytest.raises(ValueError, match="no run at"):
            marft.train(recipe(output=tmp_path), resume=True)
        folder_of(tmp_path).metrics_path.write_text('{"step": 1}\n')
        with pytest.raises(ValueError, match="holds a run already"):
            marft.train(recipe(output=tmp_path))
        assert not trained
