"""Commands that installed packages add to ``marft``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

THEIRS = """
from pathlib import Path
from marft.cli.app import command_group

app = command_group()

@app.command()
def greet(name: str, to: Path = Path()) -> None:
    'Say hello.'
    print(f"hello {name}, {to}")
"""
OTHER = """
@app.command()
def leave() -> None:
    'Say goodbye.'
"""


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "HOME": "/home/ada", "COLUMNS": "80"}
    return subprocess.run([sys.executable, "-m", "marft", *words], env=environment, capture_output=True, text=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a package that adds ``marft greet``."""
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[marft.commands]\ngreet = their_commands:app\ntrain = their_commands:app\n")
    return tmp_path


@pytest.mark.parametrize("more", ["", OTHER])
def test_a_package_adds_a_command_that_takes_paths_at_home(folder: Path, more: str) -> None:
    (folder / "their_commands.py").write_text(THEIRS + more)
    assert run("greet", "Ada", "--to", "~/x", folder=folder).stdout == "hello Ada, /home/ada/x\n"
    shown = run("--help", folder=folder).stdout
    assert "  greet         Say hello.\n" in shown
    assert "  train         Train the team of a recipe.\n" in shown, "a name of ours was taken"
    assert "Did you mean 'greet'" in run("great", folder=folder).stderr


@pytest.mark.parametrize(
    ("panel", "group"), [("", "More"), ("rich_help_panel='Look'", "Look"), ("rich_help_panel='Mine'", "More")]
)
def test_a_package_chooses_the_group_of_its_command_in_the_help(folder: Path, panel: str, group: str) -> None:
    (folder / "their_commands.py").write_text(THEIRS.replace("@app.command()", f"@app.command({panel})"))
    shown = run("--help", folder=folder).stdout
    (block,) = re.findall(rf"^{group}:\n((?:  .+\n)+)", shown, re.MULTILINE)
    assert "  greet         Say hello.\n" in block


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("app = 3", "AttributeError: 'int' object has no attribute"),
    ],
)
def test_a_broken_package_breaks_its_own_command_alone(folder: Path, module: str, why: str) -> None:
    (folder / "their_commands.py").write_text(module)
    failed = run("greet", "Ada", "--loud", folder=folder)
    assert failed.returncode != 0
    assert f"marft greet: their_commands:app cannot be imported: {why}" in failed.stderr
    assert "Traceback" not in failed.stderr
    shown = run("--help", folder=folder)
    assert shown.returncode == 0
    assert "greet         Cannot be used: its package is broken." in shown.stdout
