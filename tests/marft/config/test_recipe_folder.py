"""A recipe's tables and modules are in its own folder, whatever folder the command runs in, then and ever after."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from marft.config import load_recipe, parse_recipe, to_toml
from marft.config.paths import resolve_recipe_path
from marft.envs.table import Table
from marft.runs.changes import find_changes
from marft.runs.run_folder import RunFolder
from tests.helpers import recipe
from tests.nights import NIGHT

GRADES = "def grade(row, text):\n    return float(text == row['answer'])\n"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A recipe beside its table and its module."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "rows.csv").write_text("question,answer\n" + "".join(f"{n}?,{n}\n" for n in range(100)))
    (folder / "grades_of_mine.py").write_text(GRADES)
    table = {"name": "table", "path": "rows.csv", "grading": "grades_of_mine:grade"}
    (folder / "recipe.toml").write_text(tomli_w.dumps(recipe(output=tmp_path / "runs", environment=table)))
    yield folder / "recipe.toml"
    sys.modules.pop("grades_of_mine", None)


def dry_run(recipe: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "marft"), "train", str(recipe), "--dry-run", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="two runs: make nightly")
def test_a_recipe_is_read_from_anywhere_and_so_is_its_run(file: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = dry_run(file, elsewhere)
    assert done.returncode == 0, done.stderr
    assert "the first is rows/0" in done.stdout
    assert str(file.parent / "rows.csv") in done.stdout
    run = RunFolder.create(load_recipe(file))
    again = dry_run(run.config_path, elsewhere)
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout


@pytest.mark.slow
def test_a_module_of_the_folder_that_the_command_runs_in_is_not_taken_for_the_recipes(
    file: Path, tmp_path: Path
) -> None:
    (tmp_path / "grades_of_mine.py").write_text(GRADES)
    done = dry_run(file, tmp_path)
    assert done.returncode != 0
    assert all(str(folder / "grades_of_mine.py") in done.stderr for folder in (tmp_path, file.parent))


@pytest.mark.parametrize("inside", ["", "/__init__"])
def test_a_second_recipes_module_is_never_another_recipes_of_the_same_name(inside: str, tmp_path: Path) -> None:
    name = f"rewards_of_two_{bool(inside)}"
    written = {"rewards": [{"name": "function", "call": f"{name}:reward"}]}
    for folder in ("one", "two"):
        file = tmp_path / folder / f"{name}{inside}.py"
        file.parent.mkdir(parents=True)
        file.write_text("def reward(episode):\n    return 1.0\n")
    first = {**recipe(), **written, "recipe_folder": str(tmp_path / "one")}
    assert parse_recipe(first) == parse_recipe(first)
    with pytest.raises(ValueError, match=rf"two/{name}{inside}.py: .*one/{name}{inside}.py has the same name"):
        parse_recipe({**first, "recipe_folder": str(tmp_path / "two")})


def test_paths_of_the_command_line_are_the_recipes_too(file: Path) -> None:
    run = load_recipe(file, ["--environment.path", "../other.csv"])
    assert isinstance(run.environment, Table)
    assert run.environment.path == str(file.parents[1] / "other.csv")


@pytest.mark.parametrize("path", ["someone/data", "data"])
def test_what_is_no_file_there_is_an_id_on_the_hub(path: str, file: Path) -> None:
    run = load_recipe(file, ["--environment.path", path])
    assert isinstance(run.environment, Table)
    assert run.environment.path == path
    (file.parent / path).mkdir(parents=True)
    run = load_recipe(file, ["--environment.path", path])
    assert isinstance(run.environment, Table)
    assert run.environment.path == str(file.parent / path)


def test_a_recipe_that_is_written_down_reads_back_the_same(file: Path, tmp_path: Path) -> None:
    run = load_recipe(file)
    copy = tmp_path / "copy.toml"
    copy.write_text(to_toml(run))
    assert load_recipe(copy) == run


def test_a_run_may_go_on_with_its_recipe_from_another_folder(file: Path) -> None:
    run = load_recipe(file)
    assert not find_changes(run, run.model_copy(update={"recipe_folder": "/elsewhere"}))


def test_a_recipe_without_a_folder_is_in_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_recipe_path("rows.csv", None) == str(tmp_path / "rows.csv")
    assert resolve_recipe_path("~nobody-by-this-name/x", None) == str(tmp_path / "~nobody-by-this-name" / "x")
