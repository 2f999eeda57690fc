"""The wheel holds all that the first quarter of an hour takes: whoever has installed it needs no checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from marft.config.bundled import bundled_names
from tests.nights import BY_NIGHT, NIGHT
from tests.sources import ROOT, SOURCES, source

pytest.importorskip("hatchling", reason="needs hatchling, which builds the wheel: pip install 'marft[dev]'")

Command = Callable[..., str]
WORLD = """
import os
from pathlib import Path

import marft
import marft_envs
import marft_lab
import marft_serve
from marft_envs.relay.environment import Relay as World

packages = (marft, marft_envs, marft_lab, marft_serve)
places = sorted({str(Path(package.__file__).parents[1]) for package in packages})
Path(__file__).with_name(f"{os.getpid()}.places").write_text(" ".join(places))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    for package in ROOT.glob("packages/*"):
        subprocess.run(build, cwd=package, check=True)
    return [zipfile.ZipFile(built) for built in sorted(folder.glob("marft*.whl"))]


@pytest.fixture(scope="module")
def unpacked(wheels: list[zipfile.ZipFile], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    for wheel in wheels:
        wheel.extractall(folder)
    return folder


@pytest.fixture
def marft(unpacked: Path, tmp_path: Path) -> Command:
    """Runs ``python -m marft`` from the wheel, in an empty folder → what it printed."""

    def command(*words: str, module: str = "marft") -> str:
        environment = {**os.environ, "PYTHONPATH": str(unpacked), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", module, *words], cwd=tmp_path, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return command


def test_each_holds_every_file_of_its_package_and_nothing_else(wheels: list[zipfile.ZipFile]) -> None:
    assert len(wheels) == len(SOURCES)
    everything: set[str] = set()
    for folder, wheel in zip(SOURCES, wheels, strict=True):
        files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        held = {name for name in wheel.namelist() if not name.split("/")[0].endswith(".dist-info")}
        assert held == {path.relative_to(folder).as_posix() for path in files}
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())
        everything |= held
    assert {"marft/recipes/demo.toml", "marft/examples/plugins.py", "marft/models/tiny/model.safetensors"} <= everything
    assert {"marft/py.typed", "marft_lab/py.typed", "marft/examples/first_team.ipynb"} <= everything


def test_the_code_that_runs_is_the_wheels(marft: Command, unpacked: Path, tmp_path: Path) -> None:
    (tmp_path / "where.py").write_text("import marft; print(marft.__file__)")
    assert Path(marft(module="where").strip()).is_relative_to(unpacked)


@BY_NIGHT
@pytest.mark.slow
def test_recipes_are_listed_and_one_of_ones_own_is_read(marft: Command, tmp_path: Path) -> None:
    listed = marft("recipes")
    assert all(f"{name} " in listed for name in bundled_names())
    (tmp_path / "mine.toml").write_text(marft("recipes", "demo"), encoding="utf-8")
    assert 'name = "demo"' in marft("train", "mine.toml", "--dry-run")


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="CI runs the demo from the checkout: make nightly")
def test_the_demo_trains_and_is_evaluated_in_an_empty_folder(marft: Command, tmp_path: Path) -> None:
    small = ("--training.steps", "2", "--rollout.tasks_per_step", "2", "--algorithm.critic.warmup_steps", "0")
    assert "trained 2 steps" in marft("train", "demo", *small)
    assert "step_000002" in marft("eval", "runs/demo", "--tasks", "2", "--mode", "greedy")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "nightly", reason="half a minute: make nightly")
def test_the_first_teams_script_goes_from_a_table_to_an_adapter(unpacked: Path, tmp_path: Path) -> None:
    """In an empty folder, with nothing but the wheel: as somebody would who has read no more than the docs."""
    programs, folder = tmp_path / "programs", tmp_path / "empty"
    programs.mkdir()
    folder.mkdir()
    for name, words in (("python", ""), ("marft", " -m marft")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{words} "$@"\n')
        (programs / name).chmod(0o755)
    places = f"{programs}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": places, "PYTHONPATH": str(unpacked), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", ROOT / "docs" / "first_team.sh"], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for told in (
        "2 passed",
        "trained 4 steps",
        "step_000004  sampled",
        "0/actor/0 says",
        "wrote runs/first/report.html",
    ):
        assert told in done.stdout, told
    assert done.stdout.rstrip().endswith("<|im_end|>")
    assert sorted(path.name for path in folder.iterdir()) == ["sums.csv", "team"]


@pytest.fixture(scope="module")
def installed(wheels: list[zipfile.ZipFile], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages' folder of an environment that has the wheels and the libraries of this one, and no checkout."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=True)
    folder = Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))
    for wheel in wheels:
        wheel.extractall(folder)
    (folder / "libraries.pth").write_text(sysconfig.get_path("purelib"))  # .pth files in there are not read
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "options"),
    [
        (2, ["--rollout.workers", "1"]),
        pytest.param(4, ["--rollout.workers", "2", "--training.ranks", "2"], marks=BY_NIGHT),
        pytest.param(3, ["--rollout.workers", "1", "--training.ranks", "2", "--cluster", "{}"], marks=BY_NIGHT),
    ],
    ids=["workers", "ranks", "cluster"],
)
def test_each_process_of_a_run_has_the_packages_of_the_wheels(
    installed: Path, tmp_path: Path, processes: int, options: list[str]
) -> None:
    if "--cluster" in options:
        pytest.importorskip("ray")
    team, folder = tmp_path / "team", tmp_path / "empty"
    team.mkdir()
    folder.mkdir()
    (team / "world.py").write_text(WORLD)
    recipe = source("marft_envs/recipes/relay.toml").read_text(encoding="utf-8")
    (team / "team.toml").write_text(
        recipe.replace('[environment]\nname = "relay"', '[environment]\nname = "world:World"')
    )
    small = ["--training.steps", "1", "--rollout.tasks_per_step", "2", "--algorithm.critic.warmup_steps", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = installed.parents[2] / "bin" / "python"
    done = subprocess.run(
        [python, "-m", "marft", "train", team / "team.toml", *small, *options], cwd=folder,
        env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "trained 1 steps" in done.stdout, done.stderr
    assert [file.read_text() for file in team.glob("*.places")] == [str(installed)] * processes


@BY_NIGHT
@pytest.mark.slow
def test_the_examples_are_parts_that_a_recipe_can_name(marft: Command) -> None:
    changes = ("--environment", "marft.examples.plugins:Guess", "--algorithm.credit", "marft.examples.plugins:Median")
    shown = marft("train", "demo", "--dry-run", *changes, "--algorithm.critic.kind", "none")
    assert "highest = 10" in shown
    assert "--quick" in marft("--help", module="marft.examples.demo")
