"""``docs/real_team.md`` from top to bottom, as somebody would follow it: with the bundled model, and at night as written."""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import marft
from marft.config.bundled import resolve_path
from tests.docs import ROOT
from tests.marft.cli.test_cli import run as run_marft
from tests.nights import NIGHT

PAGE = (ROOT / "docs" / "real_team.md").read_text(encoding="utf-8")
MODEL = "runs/models/smollm2"
STEP = re.compile(  # a block, with the file that the paragraph before it begins with
    r"(?:^`(?P<file>slogans/[\w.]+)`(?:[^\n]|\n(?!\n))*\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """What is to be done: a file to write, Python to run, or commands."""

    file: str
    language: str
    text: str


def pieces() -> Iterator[Piece]:
    for found in STEP.finditer(PAGE):
        yield Piece(found["file"] or "", found["language"], found["text"])


def quick(text: str) -> str:
    """The same with one step of two tasks, few held-out tasks and short turns."""
    for pattern, small in (
        (r'(steps"?[ :=]+)\d+', "1"), (r"(tasks_per_step = )\d+", "2"), (r"(--tasks )\d+", "2"),
        (r"(samples_per_task = )\d+", "2"), (r"(max_new_tokens = )\d+", "4"),
    ):  # fmt: skip
        text = re.sub(pattern, rf"\g<1>{small}", text)
    return text


def follow(folder: Path, said: Callable[..., str], change: Callable[[str], str]) -> str:
    """Do in a folder all that the page says → what the commands printed."""
    printed, places = [], list(sys.path)
    for piece in pieces():
        text = change(piece.text)
        sys.modules.pop("reward", None)
        sys.path[:] = places
        importlib.invalidate_caches()
        if piece.file:
            (folder / piece.file).write_text(text, encoding="utf-8")
        elif piece.language == "python":
            exec(compile(text, "docs/real_team.md", "exec"), {"__name__": "__main__"})
        elif piece.language == "sh":
            printed += [command(shlex.split(line), said) for line in text.splitlines()]
    return "\n".join(printed)


def command(words: list[str], said: Callable[..., str]) -> str:
    if words[0] == "marft":
        return said(*words[1:])
    if words[1:] == ["tools/smollm2.py", MODEL] and Path(MODEL).exists():
        return ""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *words[1:]], check=True, capture_output=True, text=True, env=environment
    ).stdout


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, as a checkout would be."""
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not (Path(place) / "reward.py").exists()])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "reward", raising=False)
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="a third of a minute: make nightly")
def test_every_command_of_the_page_runs(followed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the bundled model, and as little of each as there can be."""
    shutil.copytree(resolve_path("tiny"), followed / MODEL)
    printed = follow(followed, lambda *words: run_marft(capsys, *words), quick)
    assert len((followed / "orders.jsonl").read_text().splitlines()) == 120
    for told in ("1 passed", "2 passed", "trained 1 steps", "base sampled", "wrote runs/slogans/report.html"):
        assert told in printed, told
    assert {path.name for path in (followed / "runs").iterdir()} == {
        "models", "evaluated", "hacked", "slogans", "rate_0.0001", "rate_0.001", "rate_0.01",
    }  # fmt: skip
    assert set(marft.load_run("runs/slogans").adapters()) == {"writer", "editor"}
    assert "<td>hacked</td>" in Path("runs/slogans/report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="a quarter of an hour and a download: make nightly")
def test_the_page_as_it_is_written(followed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = follow(followed, lambda *words: run_marft(capsys, *words), lambda text: text)
    assert printed.count("trained 12 steps") == 2


@pytest.mark.parametrize("text", [piece.text for piece in pieces() if piece.language == "python" and not piece.file])
def test_each_block_of_python_binds_all_that_it_uses(text: str) -> None:
    """So that it runs as a script of its own, whatever ran before it."""
    nodes = list(ast.walk(ast.parse(text)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {name.id for name in names if isinstance(name.ctx, ast.Store)} | imported | set(dir(builtins))
    assert {name.id for name in names} <= bound


def test_the_page_is_read_to_its_end() -> None:
    found = list(pieces())
    assert [piece.file for piece in found if piece.file] == [
        "slogans/recipe.toml", "slogans/reward.py", "slogans/test_reward.py", "slogans/reward.py",
        "slogans/test_reward.py",
    ]  # fmt: skip
    assert len(found) == PAGE.count("\n```") // 2
