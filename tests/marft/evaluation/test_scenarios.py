"""Frozen sets of scenarios: what is in the file, what is refused, and that exactly that is played."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import marft
from marft.cli.errors import report_errors
from marft.cli.main import app
from marft.config.load import to_toml
from marft.evaluation.comparison import compare_evaluations
from marft.evaluation.scenarios import freeze_scenarios, read_scenario_set
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from tests.helpers import settings
from tests.marft.evaluation.test_kept_evaluations import Lengths, lengths


class Reworded(Lengths):
    """The same ids, of which two are other tasks."""

    def tasks(self, split: str) -> list[marft.Task]:
        return [
            marft.Task(task.id, task.prompt + "!" * (n in (1, 3)), task.data)
            for n, task in enumerate(super().tasks(split))
        ]


class Fewer(Lengths):
    def tasks(self, split: str) -> list[marft.Task]:
        return super().tasks(split)[:-1]


class Backwards(Lengths):
    """The last task first; of each split others, and a level of three tasks each."""

    def tasks(self, split: str) -> list[marft.Task]:
        return [marft.Task(f"{split}/{n}", f"Say {n}.", {"level": n // 3}) for n in (4, 3, 2, 1, 0)]


def command(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as ended, report_errors():
        app([str(word) for word in words], prog_name="marft")
    return int(ended.value.code or 0)


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml(lengths(tmp_path / "runs", "--evaluation.modes", "['sampled']")), encoding="utf-8")
    return path


def test_a_set_is_frozen_played_exactly_and_kept_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, file = written(tmp_path), tmp_path / "smoke.json"
    words = (
        "--output",
        file,
        "--tasks",
        "4",
        "--balance-by",
        "level",
        "--attempts",
        "2",
        "--mode",
        "sampled",
        "--seed",
        "7",
    )
    assert command("scenarios", recipe, *words) == 0
    found = read_scenario_set(file)
    assert (found.seed, found.attempts, found.modes, found.split) == (7, 2, ("sampled",), "test")
    assert Counter(int(task[-1]) % 2 for task in found.digests) == {0: 2, 1: 2}
    before = file.read_bytes()
    assert command("scenarios", recipe, *words) == 0
    assert file.read_bytes() == before  # nothing of when and where

    folder = RunFolder.create(lengths(tmp_path / "runs"))
    assert command("eval", folder.path, recipe, "--scenarios", file, "--checkpoint", "base") == 0
    said = capsys.readouterr().out
    assert f"{folder.path}" in said
    assert "pass@2" in said
    kept = folder.evaluations / "base-sampled-on-smoke.parquet"
    assert [(e.task.id, e.sample) for e in read_episodes(kept)] == [(t, n) for t in found.digests for n in (0, 1)]
    assert folder.read_evaluations() == []  # what is on scenarios is no evaluation on held-out tasks
    (saved,) = folder.read_evaluations(scenarios=True)
    assert saved["scenarios"] == {"name": "smoke", "digest": found.digest}
    other = RunFolder(tmp_path / "runs" / "evaluated" / "test")
    (same,) = other.read_evaluations(scenarios=True)
    assert same["outcomes"] == saved["outcomes"]  # of the recipe's base and the run's: one team
    assert command("compare", folder.path, other.path, "--fail-if", "accuracy < -1%") == 0
    assert "sampled on smoke" in capsys.readouterr().out


def test_tasks_that_have_changed_are_refused_by_name(tmp_path: Path) -> None:
    run = lengths(tmp_path)
    found = freeze_scenarios(run, "smoke", "test", 5, "", ("greedy",), 1)
    assert [task.id for task in found.load_tasks(run)] == [f"test/{n}" for n in range(5)]
    reworded = settings("tiny", tmp_path, environment={"name": "tests.marft.evaluation.test_scenarios:Reworded"})
    with pytest.raises(ValueError, match=r"test/1, test/3 are another task now \(prompt or data\)"):
        found.load_tasks(reworded)
    fewer = settings("tiny", tmp_path, environment={"name": "tests.marft.evaluation.test_scenarios:Fewer"})
    with pytest.raises(ValueError, match="test/4 is gone"):
        found.load_tasks(fewer)


def test_tasks_are_those_of_the_split_in_its_own_order_and_of_each_value_as_many_as_there_are(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path, environment={"name": "tests.marft.evaluation.test_scenarios:Backwards"})
    found = freeze_scenarios(run, "smoke", "train", 3, "", ("greedy",), 1)
    assert [task.id for task in found.load_tasks(run)] == [*found.digests] == ["train/4", "train/3", "train/2"]
    for number, chosen in ((2, [4, 2]), (3, [4, 2, 1]), (4, [4, 3, 2, 1]), (5, [4, 3, 2, 1, 0]), (9, [4, 3, 2, 1, 0])):
        balanced = freeze_scenarios(run, "smoke", "validation", number, "level", ("greedy",), 1)
        assert [*balanced.digests] == [f"validation/{n}" for n in chosen]


def test_sets_in_other_modes_are_other_sets_and_a_file_has_all_of_them(tmp_path: Path) -> None:
    run, path = lengths(tmp_path), tmp_path / "smoke.json"
    one, both = (
        freeze_scenarios(run, "smoke", "test", 2, "", modes, 1) for modes in (("greedy",), ("greedy", "sampled"))
    )
    assert one.digest != both.digest
    both.write(path)
    assert read_scenario_set(path) == both
    with pytest.raises(ValueError, match="cannot be called"):
        freeze_scenarios(run, "a b", "test", 2, "", ("greedy",), 1)


def test_what_is_named_twice_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "smoke.json"
    freeze_scenarios(lengths(tmp_path), "smoke", "test", 2, "", ("greedy",), 1).write(path)
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "modes": ["greedy", "greedy"]}))
    assert read_scenario_set(path).modes == ("greedy",)
    path.write_text(json.dumps({**table, "tasks": [*table["tasks"], table["tasks"][0]]}))
    with pytest.raises(ValueError, match="names a task twice"):
        read_scenario_set(path)
    path.write_text(json.dumps({**table, "attempts": "1"}))
    with pytest.raises(ValueError, match="no set of scenarios"):
        read_scenario_set(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attempts": 9}, "was changed since it was written"), ({"tasks": []}, "no set of scenarios"),
        ({"seed": "x"}, "no set of scenarios"), ({"format": "another"}, "no set of scenarios"),
        ({"more": 1}, "no set of scenarios"), (None, "cannot read the scenarios"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_or_was_changed_is_refused(
    change: dict[str, Any] | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "smoke.json"
    freeze_scenarios(lengths(tmp_path), "smoke", "test", 2, "", ("greedy",), 1).write(path)
    read_scenario_set(path)
    path.write_text("{" if change is None else json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        read_scenario_set(path)
    with pytest.raises(ValueError, match="cannot be called"):
        read_scenario_set(tmp_path / "a b.json")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("eval", "RECIPE", "--scenarios", "FILE", "--tasks", "3"), "--tasks: FILE says what is played"),
        (("eval", "RECIPE", "--scenarios", "FILE", "--attempts", "3"), "--attempts: FILE says what is played"),
        (("eval", "RECIPE", "--scenarios", "FILE", "--mode", "greedy"), "--mode: FILE says what is played"),
        (("eval", "RECIPE", "--scenarios", "missing.json"), "cannot read the scenarios of missing.json"),
        (("scenarios", "RECIPE", "--split", "tests"), "'tests' is none of train, validation, test"),
        (("scenarios", "RECIPE", "--output", "set.toml"), "call the file set.json"),
        (("scenarios", "RECIPE", "--balance-by", "kind"), "tasks have no field 'kind'"),
    ],
)
def test_what_cannot_be_frozen_or_played_is_said(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = written(tmp_path)
    assert command(*(str(recipe) if word == "RECIPE" else word for word in words)) == 2
    assert message in capsys.readouterr().err


def test_several_targets_are_one_table_and_settings_may_stand_between_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, folder = written(tmp_path), RunFolder.create(lengths(tmp_path / "runs", "--name", "mine"))
    words = ("--checkpoint", "base", "--mode", "greedy")
    assert command("eval", recipe, "--evaluation.tasks", "2", folder.path, "--seed=3", *words) == 0
    targets, *_, tasks = [line.split() for line in capsys.readouterr().out.splitlines()[:4]]
    assert targets == ["recipe.toml", "mine"]
    assert tasks == ["tasks", "2", "2"]
    assert command("eval", folder.path, "nowhere", *words) == 2  # nothing is played before all can be


def test_from_python_too(tmp_path: Path) -> None:
    run = RunFolder.create(lengths(tmp_path))
    file = tmp_path / "smoke.json"
    freeze_scenarios(lengths(tmp_path), "smoke", "test", 2, "", ("greedy",), 1).write(file)
    (one,) = marft.evaluate(run.path, checkpoints="base", scenarios=file)
    assert one.scenarios["name"] == "smoke"
    assert one.tasks == 2
    assert compare_evaluations([one.as_json()], [one.as_json()], ("a", "b"), ["accuracy < 0"]).passed
    assert marft.compare([one], run.path, fail_if="accuracy < 0").passed
    with pytest.raises(ValueError, match="scenarios say what is played"):
        marft.evaluate(run.path, scenarios=file, tasks=3)
