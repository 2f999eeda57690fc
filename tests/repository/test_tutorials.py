"""The tutorials in the docs from top to bottom, as a reader would follow them: quickly by day, as written at night.

Files, commands and Python are read from the pages. At night the team has to learn what a page promises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import marft
from tests.following import Reader, quick, unchanged, work_in
from tests.marft.cli.test_cli import run as run_marft
from tests.nights import NIGHT


@dataclass(frozen=True, slots=True)
class Tutorial:
    """A page, and what it leads to.

    Args:
        pages: pages to follow, in order.
        run: the run that the last page trains or shows.
        prints: texts that the commands print.
        before: the untuned team solves at most this share of the test tasks.
        after: the trained team solves at least this share.
    """

    pages: tuple[str, ...]
    run: str
    prints: tuple[str, ...]
    before: float
    after: float
    needs: str = ""


TUTORIALS = {
    "data_and_reward": Tutorial(
        ("docs/tutorial_data_and_reward.md",), "runs/first", ("2 passed", "region = north", "region = south"), 0.6, 0.85
    ),
    "tool": Tutorial(("docs/tutorial_tool.md",), "runs/calculator", (), 0.45, 0.6),
    "environment": Tutorial(
        ("docs/own_environment.md",), "runs/bills", ("24 checks, all passed", "wrote README.md"), 0.65, 0.8
    ),
    "langgraph": Tutorial(("docs/tutorial_langgraph.md",), "runs/graph", (), 0.6, 0.85, needs="langgraph"),
    "look": Tutorial(
        ("docs/first_team.md", "docs/tutorial_look.md"), "runs/first",
        ("2 passed", "actor alone", "silence", "wrote runs/first/report.html"), 0.6, 0.75,
    ),
}  # fmt: skip


@pytest.fixture
def follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, Callable[[str], str]], str]:
    """Follow a tutorial in an empty folder; return what its commands print."""

    def follow_changed(name: str, change: Callable[[str], str]) -> str:
        if TUTORIALS[name].needs:
            pytest.importorskip(TUTORIALS[name].needs)
        reader = Reader(work_in(tmp_path, monkeypatch), lambda *words: run_marft(capsys, *words), change)
        return "\n".join(reader.follow(page) for page in TUTORIALS[name].pages)

    return follow_changed


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_every_command_of_a_tutorial_runs(name: str, follow: Callable[[str, Callable[[str], str]], str]) -> None:
    """With two training steps, and as few tasks as possible."""
    printed = follow(name, quick)
    for text in ("trained 2 steps", *TUTORIALS[name].prints):
        assert text in printed, text
    assert len(marft.load_run(TUTORIALS[name].run).metrics) == 2


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="two minutes each: make nightly")
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_team_learns_what_its_tutorial_promises(
    name: str, follow: Callable[[str, Callable[[str], str]], str]
) -> None:
    """As the page is written."""
    follow(name, unchanged)
    tutorial = TUTORIALS[name]
    solved = {
        row["checkpoint"]: row["accuracy"]
        for row in marft.load_run(tutorial.run).evaluations
        if not row["shuffled_messages"]
    }
    before = solved.pop("base")
    (after,) = solved.values()
    assert before <= tutorial.before
    assert after >= tutorial.after
