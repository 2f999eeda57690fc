"""``docs/real_team.md`` from top to bottom, as a reader would follow it: with the bundled model, and at night as written."""

from __future__ import annotations

import ast
import builtins
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import marft
from marft.config.bundled import resolve_path
from tests.docs import ROOT
from tests.following import Reader, pieces, quick, work_in
from tests.marft.cli.test_cli import run as run_marft
from tests.nights import NIGHT

PAGE = "docs/real_team.md"
MODEL = "runs/models/smollm2"
GET_MODEL = f"python tools/smollm2.py {MODEL}"


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, as a checkout would be."""
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    return work_in(tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="a third of a minute: make nightly")
def test_every_command_of_the_page_runs(followed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the bundled model, and as little of each as there can be."""
    shutil.copytree(resolve_path("tiny"), followed / MODEL)
    printed = Reader(followed, said(capsys), quick, unneeded=[GET_MODEL]).follow(PAGE)
    assert len((followed / "orders.jsonl").read_text().splitlines()) == 120
    for told in (
        "1 passed",
        "2 passed",
        "trained 2 steps",
        "base sampled",
        "wrote runs/slogans/report.html",
        "It fits.",
    ):
        assert told in printed, told
    assert {path.name for path in (followed / "runs").iterdir()} == {
        "models", "evaluated", "hacked", "slogans", "rate_0.0001", "rate_0.001", "rate_0.01",
    }  # fmt: skip
    assert set(marft.load_run("runs/slogans").adapters()) == {"writer", "editor"}
    assert "<td>hacked</td>" in Path("runs/slogans/report.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="a quarter of an hour and a download: make nightly")
def test_the_page_as_it_is_written(followed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = Reader(followed, said(capsys)).follow(PAGE)
    assert printed.count("trained 12 steps") == 2


def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    return lambda *words: run_marft(capsys, *words)


@pytest.mark.parametrize(
    "text", [piece.text for piece in pieces(PAGE) if piece.language == "python" and not piece.file]
)
def test_each_block_of_python_binds_all_that_it_uses(text: str) -> None:
    """So that it runs as a script of its own, whatever ran before it."""
    nodes = list(ast.walk(ast.parse(text)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {name.id for name in names if isinstance(name.ctx, ast.Store)} | imported | set(dir(builtins))
    assert {name.id for name in names} <= bound


def test_the_page_is_read_to_its_end() -> None:
    found = list(pieces(PAGE))
    assert [piece.file for piece in found if piece.file] == [
        "slogans/recipe.toml", "slogans/reward.py", "slogans/test_reward.py", "slogans/reward.py",
        "slogans/test_reward.py",
    ]  # fmt: skip
    assert len(found) == (ROOT / PAGE).read_text(encoding="utf-8").count("\n```") // 2
