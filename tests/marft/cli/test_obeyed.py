"""Nothing that models, tasks or environments write is obeyed: by the terminal, by a page, by a picture."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from marft.cli.console import add_sanitizer, evaluation_table, wide_console
from marft.cli.live import EpisodeScreen
from marft.cli.main import app
from marft.cli.show import terms_table
from marft.cli.terminal import TerminalCallback
from marft.common.texts import MAX_ERROR_LENGTH, format_error, sanitize, truncate
from marft.common.types import Episode, Observation, Task, ToolCall, Transition
from marft.config.interfaces.channel import Message
from marft.evaluation.checkpoint_results import build_comparison_table
from marft.evaluation.episode_graph import build_timeline, draw_episode
from marft.evaluation.html_pages import render_page
from marft.evaluation.report import write_report
from marft.runs.episode_files import write_episodes
from marft.runs.run_folder import RunFolder
from tests.episodes import make_action
from tests.helpers import settings, write_evaluation
from tests.marft.evaluation.test_unknown_success import saved

ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\r\x08\u202e\u2066"
HOSTILE = f"{ESCAPES}[red]markup[/red] [/] :smile: <script>alert(1)</script> $\\bad{{$"
OBEYED = ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\r", "\x08", "\u202e", "\u2066")


def hostile_episode(**changes: Any) -> Episode:
    action = replace(
        make_action(HOSTILE, text=HOSTILE), ended=1.0, calls=(ToolCall(HOSTILE, HOSTILE, HOSTILE, error=True),),
        intermediate_texts=(HOSTILE,),
    )  # fmt: skip
    transitions = (Transition(Observation(HOSTILE), 1.0, {HOSTILE: 1.0}, {HOSTILE: 1.0, f"x/{HOSTILE}": 0.5}),)
    return replace(
        Episode(Task(HOSTILE, HOSTILE), "train/0", 0, (action,), "terminated", transitions, error=HOSTILE), **changes
    )


def terminal() -> Console:
    return add_sanitizer(
        Console(file=io.StringIO(), force_terminal=True, width=400, markup=False, emoji=False, highlight=False)
    )


def check(console: Console) -> None:
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]markup[/red] [/] :smile: <script>" in written
    for one in OBEYED:
        assert one not in written


def check_page(file: Path) -> None:
    written = file.read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in written
    assert "<script" not in written
    assert "Content-Security-Policy" in written
    assert not any(one in written for one in OBEYED)


EVALUATION = saved(HOSTILE, [1.0, 2.0], [True])
SHOWN: dict[str, Any] = {
    "text": lambda: HOSTILE,
    "a styled text": lambda: Text(HOSTILE, style="bold"),
    "evaluations": lambda: evaluation_table([EVALUATION]),
    "a timeline": lambda: build_timeline(hostile_episode()),
    "reward terms": lambda: terms_table({HOSTILE: {"": 1.0, HOSTILE: 0.5}}),
}


@pytest.mark.parametrize("what", SHOWN)
def test_the_terminal_shows_what_was_written_and_obeys_nothing(what: str) -> None:
    console = terminal()
    console.print(SHOWN[what]())
    check(console)


def test_the_console_of_every_command_is_guarded(capsys: pytest.CaptureFixture[str]) -> None:
    wide_console().print(HOSTILE)
    written = capsys.readouterr().out
    assert "[red]markup[/red] [/] :smile:" in written
    assert not any(one in written for one in OBEYED)


def test_a_run_that_trains_shows_notes_and_names_and_obeys_nothing() -> None:
    watching = TerminalCallback([HOSTILE], verbose=True)
    watching.console = terminal()
    watching.on_note(HOSTILE)
    watching.on_step_end(1, {"reward": 1.0, f"agents/{HOSTILE}/kl": 0.5})
    assert "KL 0.5" in watching.console.file.getvalue()  # type: ignore[attr-defined]
    check(watching.console)


def test_an_episode_that_is_played_live_is_shown_and_not_obeyed() -> None:
    screen = EpisodeScreen(terminal())
    screen.on_observation(Observation(HOSTILE))
    screen.on_request(HOSTILE, [Message(HOSTILE, HOSTILE)])
    screen.on_action(hostile_episode().actions[0])
    screen.show_outcome(hostile_episode())
    screen.show_outcome(hostile_episode(status="failed"))
    check(screen.console)


def test_a_comparison_shows_names_and_obeys_nothing(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    write_evaluation(folder, EVALUATION, "x")
    console = terminal()
    console.print(build_comparison_table([folder]))
    check(console)


def test_the_graph_of_a_hostile_episode_is_a_picture_in_a_file_of_its_own_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    odd = [hostile_episode(), hostile_episode(task=Task("../../../" + "x" * 300 + "\x00", "?"))]
    write_episodes(folder.episodes / "step_000001.parquet", odd)
    for number in range(2):
        result = CliRunner().invoke(app, ["graph", str(folder.path), str(number)])
        assert result.exit_code == 0, result.output
        assert not any(one in result.output for one in OBEYED)
    pictures = list(folder.graphs.iterdir())
    assert len(pictures) == 2
    assert not any("<script>" in picture.read_text() for picture in pictures)
    assert len(draw_episode(odd[1]).axes[0].get_title(loc="left")) < 150


def test_pages_show_what_was_written_and_obey_nothing(tmp_path: Path) -> None:
    folder = RunFolder.create(settings("tiny", tmp_path))
    example = {"observation": HOSTILE, "success": None, "reward": 1.0, "actions": [
        {"agent": HOSTILE, "step": 0, "calls": [HOSTILE], "text": HOSTILE}]}  # fmt: skip
    write_evaluation(folder, {**EVALUATION, "examples": [example]}, "x")
    write_evaluation(folder, {**EVALUATION, "checkpoint": "base", "examples": [example]}, "y")
    folder.metrics_path.write_text('{"step": 1, "reward": 1.0, "agents/$\\\\bad{$<script>/kl": 0.5}\n')
    write_report(folder)
    check_page(folder.report_path)


def test_a_text_that_is_endless_is_cut_on_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endless_page").mkdir()
    (tmp_path / "endless_page" / "__init__.py").touch()
    (tmp_path / "endless_page" / "page.html.jinja").write_text("<title>{{ title }}</title>")
    monkeypatch.syspath_prepend(str(tmp_path))
    written = render_page("endless_page", "page.html.jinja", title="x" * 20_000_000)
    assert len(written) < 1_000_000
    assert "19,800,000 more characters" in written


def test_an_error_of_20_mb_is_cut_and_says_how_much_was() -> None:
    said = format_error(ValueError("x" * 20_000_000))
    assert len(said) < MAX_ERROR_LENGTH + 50
    assert said.endswith("… (19,998,012 more characters)")
    assert truncate("short") == "short"


def test_what_turns_the_direction_of_text_is_shown_as_what_it_is() -> None:
    assert sanitize("a\u202eb\u2066c\u200fd\u061ce\u2028") == "a�b�c�d�e�"
    assert sanitize("naïve 日本語 👩\u200d🔬\n\tשלום") == "naïve 日本語 👩\u200d🔬\n\tשלום"
