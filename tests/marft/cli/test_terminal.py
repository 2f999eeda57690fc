"""A run in the terminal, in a file, and for programs: what is printed, how wide it is, and what of it moves."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from rich.console import Console

from marft.cli.console import add_sanitizer
from marft.cli.main import main
from marft.cli.output import JsonCallback, JsonLinesWriter, json_lines_stdout, output_mode
from marft.cli.terminal import (
    BLOCKS,
    AgentLineFormatter,
    ProgressDisplay,
    QuietCallback,
    StepTable,
    TerminalCallback,
    TimeEstimate,
    sparkline,
    two_digits,
)
from marft.common.types import Episode, Task
from marft.config import to_toml
from tests.helpers import settings
from tests.marft.cli.test_obeyed import HOSTILE
from tests.nights import BY_NIGHT

AGENT = {
    "action_length": 1234.5, "entropy": 1.234, "kl": 0.1234, "clip_fraction": 0.123, "gradient_share": 0.49,
    "truncation_rate": 0.5, "policy_lag": 12.0, "kl_to_base": 1.0, "log_prob_difference_max": 1e-6,
}  # fmt: skip
METRICS = {
    "reward": 0.5, "reward_std": 0.25, "accuracy": 0.5, "policy_loss": -0.001, "critic/loss": 0.1,
    "critic/explained_variance": 0.2, "zero_advantage_fraction": 0.3, "episodes_dropped": 3.0,
    "episodes_per_second": 12.0, "seconds": 2.5,
}  # fmt: skip


def of_agent(role: str, **changes: float) -> dict[str, float]:
    return {f"agents/{role}/{name}": value for name, value in {**AGENT, **changes}.items()}


def lost(reason: str = "boom") -> Episode:
    return Episode(Task("t/1", "?"), "train/0", 2, (), "failed", (), error=reason)


def shown(watching: TerminalCallback | QuietCallback, width: int, terminal: bool) -> Callable[[], str]:
    file = io.StringIO()
    watching.console = add_sanitizer(
        Console(file=file, width=width, force_terminal=terminal, no_color=True, highlight=False)
    )
    return file.getvalue


@examples(max_examples=30)
@given(
    st.lists(st.from_regex(r"[a-zé][a-z_0-9]{0,30}", fullmatch=True), min_size=1, max_size=4, unique=True),
    st.dictionaries(st.sampled_from(sorted(AGENT)), st.floats(allow_infinity=True, allow_nan=True)),
    st.integers(60, 200),
)
def test_a_line_of_an_agent_fits_a_hundred_columns_and_the_terminal(
    roles: list[str], values: dict[str, float], width: int
) -> None:
    lines = AgentLineFormatter(roles)
    for role in roles:
        assert len(lines.format_line(role, of_agent(role, **values), width)) <= min(width, 100)


def test_numbers_of_agents_stand_below_each_other() -> None:
    lines = AgentLineFormatter(["reasoner", "actor"])
    shown = [lines.format_line(role, of_agent(role), 100) for role in ("reasoner", "actor")]
    shown.append(
        lines.format_line("actor", of_agent("actor", action_length=1.0, clip_fraction=0.0, truncation_rate=0.0), 100)
    )
    for label in ("length", "entropy", "KL", "clipped", "gradient share"):
        assert len({line.index(label) for line in shown}) == 1
    assert "truncated" not in shown[2]  # which is all right, and says so by its absence


def rows(*steps: dict[str, float], width: int = 100, verbose: bool = False) -> list[str]:
    table = StepTable()
    table.steps = 30
    return [
        line.plain for step, metrics in enumerate(steps, start=9) for line in table.lines(step, metrics, width, verbose)
    ]


class TestStepTable:
    def test_columns_stay_whatever_a_step_has_measured(self) -> None:
        early = {"reward": 0.3, "zero_advantage_fraction": 0.7, "seconds": 0.0123}
        late = {
            **METRICS,
            "accuracy": math.nan,
            "kl": 1.2e-7,
            "entropy": 12.34,
            "tokens_per_second": 1024.0,
        }
        legend, headings, *lines = rows(early, late)
        assert "--verbose" in legend
        assert headings.split() == [
            "reward",
            "accuracy",
            "policy",
            "loss",
            "zero",
            "adv.",
            "entropy",
            "KL",
            "tokens/s",
            "seconds",
        ]
        assert lines[0].split() == ["step", "9/30", "0.30", "–", "–", "70", "%", "–", "–", "–", "0.012"]
        assert lines[1].split() == ["step", "10/30", "0.50", "–", "-0.0010", "30", "%", "12", "1.2e-07", "1024", "2.5"]
        assert len({len(line) for line in (headings, *lines[:2])}) == 1

    @pytest.mark.parametrize("width", [80, 100])
    def test_rows_fit_the_terminal(self, width: int) -> None:
        steps = [{**METRICS, "kl": -1.2e-7, "entropy": -0.0123, "tokens_per_second": 99999.0}] * 3
        assert max(map(len, rows(*steps, width=width))) <= width

    def test_headings_are_repeated_and_the_legend_is_not(self) -> None:
        lines = rows(*[METRICS] * 60)
        assert sum("policy loss" in line for line in lines) == 3
        assert sum("--verbose" in line for line in lines) == 1

    def test_what_went_wrong_has_a_line_of_its_own(self) -> None:
        usual = {**METRICS, "episodes_dropped": 0.0, "ranks_lost": 0.0, "engine_restarts": 0.0}
        assert len(rows(usual)) == 3  # legend, headings and the row
        events = rows(
            {**usual, "episodes_dropped": 3.0, "engine_restarts": 1.0, "guards/kl": 1.0, "guards/rolled_back_to": 3.0}
        )
        assert events[-1].strip() == "dropped 3  engine restarts 1  guard kl"

    def test_verbose_adds_what_the_columns_leave_out(self) -> None:
        lines = rows({**METRICS, "async/learner_idle_seconds": 1.25}, verbose=True)
        for part in ("±0.25", "value loss 0.1", "explained 0.20", "episodes/s 12", "learner idle 1.25 s"):
            assert part in lines[-1]

    def test_a_warm_start_has_columns_of_its_own(self) -> None:
        headings, row = rows({"sft/loss": 1.234, "sft/held_out_loss": 13.8, "seconds": 2.0})
        assert headings.split() == ["loss", "held-out", "loss", "seconds"]
        assert row.split() == ["step", "9/30", "1.2", "14", "2.0"]


@given(st.floats(-1e300, 1e300))
def test_a_number_keeps_two_digits_at_least(value: float) -> None:
    text = two_digits(value)
    assert float(text) == pytest.approx(value, rel=0.051)
    assert value == 0 or "e" in text or len(text.lstrip("-0.").replace(".", "")) >= 2


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_every_line_that_moves_fits_the_terminal(width: int) -> None:
    times = iter(range(1000))
    progress = ProgressDisplay("training", read_clock=lambda: float(next(times)))
    assert progress.lines(width)[0].plain == "training  getting ready"
    progress.start(0, 1000)
    assert "first step" in progress.lines(width)[0].plain
    for step in range(1, 130):
        progress.end_step(step, {"reward": math.sin(step), "accuracy": math.nan if step % 2 else 0.5})
    progress.num_episodes = 123_456
    lines = [line.plain for line in progress.lines(width)]
    assert [line.split()[0] for line in lines] == ["training", "reward", "accuracy"]
    assert "129/1000" in lines[0]
    assert max(map(len, lines)) <= width
    assert all(line.isascii() for line in (line.plain for line in progress.lines(width, blocks=False)))


def test_what_a_run_will_take_is_told_by_its_last_steps_and_not_for_sure_by_few() -> None:
    eta = TimeEstimate()
    eta.update(0.0)
    assert math.isnan(eta.remaining_seconds(10, 5.0))
    eta.update(100.0)  # the first one is slow
    assert eta.format(10, 100.0) == "~16:40 left"
    for step in range(1, 30):
        eta.update(100.0 + 2.0 * step)
    assert eta.format(10, 158.0) == "~0:20 left"
    assert eta.remaining_seconds(10, 159.0) == 19.0
    assert eta.remaining_seconds(10, 1000.0) == 18.0  # a step that hangs is not the run's last
    assert eta.remaining_seconds(0, 1000.0) == 0.0


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=300), st.integers(1, 60))
def test_a_sparkline_is_as_wide_as_it_may_and_has_its_extremes(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(width, len(values))
    assert set(line) <= {*BLOCKS, " "}
    finite = [value for value in values if math.isfinite(value)]
    if len(values) <= width and len(set(finite)) > 1 and max(finite) / 2 - min(finite) / 2 > 1e-300:
        assert line[values.index(max(finite))] == BLOCKS[-1]
        assert line[values.index(min(finite))] == BLOCKS[0]


def test_what_a_guard_sees_stands_in_the_step_that_it_saw_it_in() -> None:
    watching = TerminalCallback(["actor"])
    text = shown(watching, 100, terminal=False)
    watching.on_train_start(0, 9)
    watching.on_guard(7, "kl", "actor: each of the last 5 steps moved it by 0.3 nats")
    watching.on_step_end(7, {**METRICS, **of_agent("actor"), "guards/kl": 1.0})
    _, _, first, second, third = text().splitlines()
    assert first.startswith("step 7/9      0.50")
    assert second.split() == ["dropped", "3"]  # the guard has a line of its own
    assert third.strip() == "guard kl  actor: each of the last 5 steps moved it by 0.3 nats"
    watching.on_step_end(8, {**METRICS, "guards/kl": 1.0})
    assert text().splitlines()[-1].split() == ["dropped", "3", "guard", "kl"]  # still raised, and explained above
    assert text().count("each of the last") == 1
    assert "\x1b" not in text()


def test_quiet_prints_warnings_alone_each_reason_once() -> None:
    watching = QuietCallback()
    text = shown(watching, 100, terminal=False)
    for step in (1, 2):
        watching.on_episode(lost())
        watching.on_step_end(step, METRICS)
    watching.on_guard(2, "kl", "too far")
    watching.on_note("odd")
    assert text().splitlines() == ["step 1: dropped  1 × failed: boom", "step 2: guard kl: too far", "odd"]


def test_programs_get_one_object_a_line_whatever_is_in_it() -> None:
    out = io.StringIO()
    machine = JsonCallback(JsonLinesWriter(out), Path("runs/a"), [HOSTILE])
    machine.on_train_start(3, 9)
    machine.on_episode(lost(HOSTILE + "\ud83d"))
    machine.on_episode(replace(lost(), status="terminated", error=""))
    machine.on_guard(4, "kl", HOSTILE)
    machine.on_step_end(4, {"reward": math.nan, "kl": math.inf, "accuracy": 0.5})
    machine.on_note("a\nb")
    lines = out.getvalue().splitlines()
    assert out.getvalue().isascii()
    assert "\x1b" not in out.getvalue()
    events = [json.loads(line) for line in lines]
    assert [event["event"] for event in events] == ["began", "episode_lost", "guard", "step", "note"]
    assert events[0] == {"event": "began", "schema": 1, "run": "runs/a", "agents": [HOSTILE], "done": 3, "steps": 9}
    assert events[1] | {"error": ""} == {
        "event": "episode_lost", "step": 4, "task": "t/1", "sample": 2, "status": "failed", "error": ""
    }  # fmt: skip
    assert events[3]["metrics"] == {"reward": None, "kl": None, "accuracy": 0.5}
    assert events[4] == {"event": "note", "step": 4, "text": "a\nb"}


def test_what_others_print_meanwhile_goes_elsewhere(capfd: pytest.CaptureFixture[str]) -> None:
    with json_lines_stdout() as lines:
        print("noise")  # noqa: T201
        lines.write("note", text="heard")
    print("after")  # noqa: T201
    captured = capfd.readouterr()
    assert captured.out == '{"event": "note", "text": "heard"}\nafter\n'
    assert captured.err == "noise\n"


def test_one_voice_at_a_time() -> None:
    assert [output_mode(False, False), output_mode(True, False), output_mode(False, True)] == ["", "quiet", "json"]
    assert output_mode(False, False, verbose=True) == "verbose"
    with pytest.raises(ValueError, match="--quiet and --json exclude each other"):
        output_mode(True, True)


def test_the_second_ctrl_c_of_a_program_that_watches_ends_it_at_once() -> None:
    out = io.StringIO()
    with JsonCallback(JsonLinesWriter(out), Path("a"), []) as machine:
        signal.raise_signal(signal.SIGINT)
        assert machine.wants_stop()
        assert "stopping after this step" in json.loads(out.getvalue())["text"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml(settings("tiny", tmp_path)))
    return path


def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> list[dict[str, Any]]:
    monkeypatch.setattr(sys, "argv", ["marft", *words, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    assert not ended.value.code, captured.err
    return [json.loads(line) for line in captured.out.splitlines()]


@BY_NIGHT
@pytest.mark.slow
def test_commands_tell_programs_what_they_did(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, recipe_file: Path, tmp_path: Path
) -> None:
    trained = told(capsys, monkeypatch, "train", str(recipe_file))
    assert [event["event"] for event in trained] == ["began", "step", "step", "done"]
    assert trained[1]["metrics"]["reward"] >= 0
    assert trained[-1] | {"run": "", "report": "", "learned": True} == {
        "event": "done", "step": 2, "steps": 2, "stopped": False, "learned": True, "run": "", "report": ""
    }  # fmt: skip
    evaluated = told(capsys, monkeypatch, "eval", str(tmp_path / "test"), "--tasks", "3", "--mode", "greedy")
    assert [(event["event"], event.get("checkpoint")) for event in evaluated] == [
        ("evaluation", "base"), ("evaluation", "step_000002"), ("done", None)
    ]  # fmt: skip
    assert evaluated[0]["tasks"] == 3
    assert "cost_tokens" in evaluated[0]["metrics"]


WATCHED = """
from marft.cli.terminal import TerminalCallback
with TerminalCallback(["actor"]) as watching:
    watching.on_train_start(0, 2)
    for step in (1, 2):
        watching.on_step_end(step, {"reward": step / 2, "agents/actor/kl": 0.1})
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "moves"), [("xterm", True), ("dumb", False)])
def test_in_a_terminal_it_moves_and_in_a_dumb_one_it_does_not(kind: str, moves: bool) -> None:
    """A real one, 60 columns wide."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": kind, "COLUMNS": "60", "NO_COLOR": "1"}
    words = [sys.executable, "-c", WATCHED]
    with subprocess.Popen(words, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        written = b""
        while True:
            try:
                written += os.read(controller, 65536)
            except OSError:  # which is how a terminal ends
                break
    os.close(controller)
    text = written.decode()
    assert process.returncode == 0, text
    assert "step 2/2" in text
    assert ("training" in text) == moves
    assert ("\x1b[2K" in text) == moves
    assert "\x1b[3" not in text  # no colours
