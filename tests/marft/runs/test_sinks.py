"""Sinks: each hears what the log has, and none of them can stop or slow a run, whatever it does."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from marft.cli.main import main
from marft.config import RunSettings, parse_recipe
from marft.config.interfaces.metric_logger import RunInfo
from marft.config.run import check_packages
from marft.runs.logger_callback import LoggerQueue, logged_parameters
from marft.runs.metrics_log import read_rows
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.helpers import recipe, settings, until
from tests.runs import Listening, telling
from tests.sink_parts import NEVER, Bad, Keeps


@pytest.fixture(autouse=True)
def let_go() -> Iterator[None]:
    """What hangs for ever hangs until the test is over."""
    NEVER.clear()
    yield
    NEVER.set()


OPENING = RunInfo(Path(), "a", "b", 0, {})


def run_with(output: Path, *sinks: dict[str, Any], **changes: Any) -> RunSettings:
    return parse_recipe(recipe("tiny", output, sinks=list(sinks), **changes))


@pytest.fixture
def heard() -> list[tuple[Any, ...]]:
    Keeps.heard.clear()
    return Keeps.heard


def test_a_sink_hears_every_step_and_note_in_order_and_numbers_alone(
    tmp_path: Path, heard: list[tuple[Any, ...]]
) -> None:
    run = run_with(tmp_path, {"name": "tests.sink_parts:Keeps"})
    listening = Listening()
    with telling(run, RunFolder.create(run), 0, listening) as sinks:
        sinks.write(1, {"reward": 0.5, "kl": float("nan")})
        sinks.note("odd")
        sinks.write(2, {"reward": 0.6})
    assert heard[0][1].name == "test"
    assert heard[1:] == [("log", 1, {"reward": 0.5}), ("note", 1, "odd"), ("log", 2, {"reward": 0.6}), ("close",)]
    assert listening.notes == ["odd"]


@pytest.mark.parametrize("where", ["open", "log", "note", "close"])
@pytest.mark.parametrize("how", ["raise", "hang", "exit"])
def test_a_sink_that_goes_wrong_is_said_once_and_loses_nothing_of_the_log(tmp_path: Path, where: str, how: str) -> None:
    run = run_with(tmp_path, {"name": "tests.sink_parts:Bad", "where": where, "how": how})
    folder, listening = RunFolder.create(run), Listening()
    with telling(run, folder, 0, listening) as sinks:
        sinks.note("hello")
        for step in range(1, 6):
            sinks.write(step, {"reward": float(step)})
    assert [row["reward"] for row in folder.read_metrics()] == [1.0, 2.0, 3.0, 4.0, 5.0]
    notes = listening.notes
    notes.remove("hello")
    assert 1 <= len(notes) <= 2  # when it was noticed, and what came of it
    assert all("sink 'tests.sink_parts:Bad'" in note and "metrics.jsonl" in note for note in notes)
    why = {"raise": "ConnectionError: nobody\ufffd[2J there", "exit": "SystemExit: 3", "hang": "did not close in time"}
    assert why[how] in notes[-1]


@pytest.mark.parametrize(("where", "lost"), [("open", 6), ("log", 5), ("note", 1)])
def test_what_a_sink_did_not_take_is_counted(tmp_path: Path, where: str, lost: int) -> None:
    run = run_with(tmp_path, {"name": "tests.sink_parts:Bad", "where": where, "close_seconds": 5.0})
    listening = Listening()
    with telling(run, RunFolder.create(run), 0, listening) as sinks:
        sinks.note("hello")
        for step in range(1, 6):
            sinks.write(step, {"reward": 0.0})
    assert f"has not got {lost} of 6 entries" in listening.notes[-1]


def test_a_process_that_a_sink_forks_ends_and_leaves_the_runs_to_it(heard: list[tuple[Any, ...]]) -> None:
    children: list[int] = []

    def forks(_: object) -> None:
        child = os.fork()
        if not child:
            raise ConnectionError
        children.append(child)

    feed = LoggerQueue(Keeps(), OPENING)
    feed.put(forks)
    feed.stop()
    assert feed.wait(time.monotonic() + 60) == ""
    assert heard[-1] == ("close",)
    ended = [(0, 0)]
    try:
        until(lambda: ended.append(os.waitpid(children[0], os.WNOHANG)) or bool(ended[-1][0]))
    finally:
        if not ended[-1][0]:
            os.kill(children[0], signal.SIGKILL)
    assert ended[-1] == (children[0], 0)


def test_what_waits_for_a_sink_is_bounded_and_what_goes_beyond_is_counted() -> None:
    feed = LoggerQueue(Bad(where="open", how="hang"), OPENING, max_size=3)
    for _ in range(3):
        feed.put(lambda sink: None)
    assert feed.take_warning() == "", "there is room for three"
    for _ in range(7):
        feed.put(lambda sink: None)
    assert "3 entries were waiting already" in feed.take_warning()
    assert feed.take_warning() == ""
    feed.stop()
    assert "has not got 10 of 10 entries" in feed.wait(0.0)


def test_a_sink_that_took_everything_and_closes_badly_has_lost_nothing() -> None:
    feed = LoggerQueue(Bad(where="close", how="raise"), OPENING)
    feed.put(lambda sink: None)
    feed.stop()
    assert "did not end well: ConnectionError" in feed.wait(time.monotonic() + 60.0)


def test_what_comes_after_the_end_is_counted_as_lost(heard: list[tuple[Any, ...]]) -> None:
    feed = LoggerQueue(Keeps(), OPENING)
    feed.put(lambda sink: sink.note(1, "in time"))
    feed.stop()
    assert feed.wait(time.monotonic() + 60.0) == ""
    feed.put(lambda sink: sink.note(2, "late"))
    assert "it has ended" in feed.take_warning()
    assert "has not got 1 of 2 entries" in feed.wait(0.0)
    assert [entry[1:] for entry in heard if entry[0] == "note"] == [(1, "in time")]


def test_where_a_run_is_to_end_at_once_nobody_waits_for_its_sinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with(tmp_path, {"name": "tests.sink_parts:Bad", "where": "open", "how": "hang", "close_seconds": 3600.0})
    monkeypatch.setattr("marft.runs.logger_callback.SHORT_WAIT_SECONDS", 0.01)
    with pytest.raises(KeyboardInterrupt), telling(run, RunFolder.create(run), 0, Listening()):
        raise KeyboardInterrupt  # or this test would take an hour


def test_a_run_with_a_sink_that_hangs_learns_what_one_without_learns(
    tmp_path: Path, heard: list[tuple[Any, ...]]
) -> None:
    logs, listening = [], Listening()
    bad = ({"name": "tests.sink_parts:Bad", "how": "hang"}, {"name": "tests.sink_parts:Keeps"})
    for name, sinks in (("plain", ()), ("hangs", bad)):
        run = run_with(tmp_path, *sinks, name=name)
        folder = RunFolder.create(run)
        train(run, folder, callbacks=[listening])
        rows = read_rows(folder.metrics_path)[0]
        logs.append([{key: value for key, value in row.items() if "second" not in key} for row in rows])
    assert logs[0] == logs[1]
    assert [entry[1] for entry in heard if entry[0] == "log"] == [1, 2]
    assert len([note for note in listening.notes if "tests.sink_parts:Bad" in note]) == 1
    assert not (tmp_path / "plain" / "tensorboard").exists()


def test_a_run_keeps_its_id_when_it_goes_on_and_another_one_has_its_own(tmp_path: Path) -> None:
    folders = [RunFolder.create(settings("tiny", tmp_path, name=name)) for name in ("a", "b")]
    ids = [folder.read_id() for folder in folders]
    assert ids == [folder.read_id() for folder in folders]
    assert len(set(ids)) == 2
    folders[0].begin(settings("tiny", tmp_path, name="a"), overwrite=True)
    assert folders[0].read_id() not in ids
    (folders[1].path / "run.json").write_text('{"format": "a run of MARFT, 1", "begun": "yesterday"}')
    assert folders[1].read_id().isalnum()  # of an earlier version


def test_sinks_are_told_the_recipe_by_keys_and_no_secret_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAR_KEY", "sk-123456")
    run = settings(
        "tiny", "runs", "--models.far.path", "gpt", "--models.far.endpoint",
        "{ url = 'http://h/v1', extra_body = { api_key = '$FAR_KEY' }, local_model = 'base' }",
        "--policies.actor", "{ model = 'far', train = 'frozen' }", "--agents.reasoner.answers", "true",
    )  # fmt: skip
    told = dict(logged_parameters(run))
    assert told["training.steps"] == 2
    assert told["agents.reasoner.instructions"] == "Reason."
    assert "sk-123456" not in json.dumps(told)
    assert not [key for key in told if key.startswith(("sinks", "output"))]


def test_a_package_that_is_missing_is_named_with_its_extra_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tmp_path, {"name": "tests.sink_parts:Needy"})
    with pytest.raises(ValueError, match=r"pip install 'marft\[needy\]'; or leave it out"):
        check_packages(run)
    (tmp_path / "tests_need_this").mkdir()  # as wandb leaves one where it was used
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="needs a package"):
        check_packages(run)
    words = ["marft", "train", "demo", "--sinks", "[{ name = 'tests.sink_parts:Needy' }]", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "marft[needy]" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["tests_need_this"]


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        ("{ name = 'wandb', projekt = 'x' }", "did you mean 'project'"),
        ("{ name = 'wandbb' }", "did you mean 'wandb'"),
        ("{ name = 'mlflow', tracking_uri = 'http://me:secret@host' }", "MLFLOW_TRACKING_USERNAME and _PASSWORD"),
        ("{ name = 'trackio', project = '' }", "project"),
        ("{ name = 'tests.sink_parts:NEVER' }", "is not a sink"),
    ],
)
def test_what_no_sink_understands_is_refused(sink: str, told: str) -> None:
    with pytest.raises(ValueError, match="recipe:") as caught:
        settings("tiny", "runs", "--sinks", f"[{sink}]")
    assert told in str(caught.value)


def test_no_sink_is_imported_unless_it_is_chosen(tmp_path: Path) -> None:
    code = (
        "import sys; from tests.helpers import settings\n"
        "run = settings('tiny', sys.argv[1], '--sinks', \"[{ name = 'wandb' }, { name = 'mlflow' }, { name = 'trackio' }]\")\n"
        "print({'wandb', 'mlflow', 'trackio', 'tensorboard', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# The real packages, offline, each in a process of its own: they read their environment when they are imported. A run of
# two steps that goes on to a third, with a note and a guard's sentence.

BEGIN_AND_GO_ON = """
import sys
from pathlib import Path
from tests.helpers import settings
from marft.runs.run_folder import RunFolder
run = settings("tiny", sys.argv[1], "--sinks", sys.argv[2])
from tests.runs import Listening, telling
folder, listening = RunFolder.create(run), Listening()
for done, steps in ((0, (1, 2)), (2, (3,))):
    with telling(run, folder, done, listening) as sinks:
        for step in steps:
            sinks.write(step, {"reward": step / 10, "agents/actor/kl": 0.5, "pass@2": 1.0})
        sinks.note(f"a sentence after {step}")
print(folder.read_id(), listening.notes)
"""


def begun_and_gone_on(tmp_path: Path, sink: str, **environment: str) -> str:
    """→ the run's id."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN_AND_GO_ON, str(tmp_path), f"[{sink}]"], capture_output=True, text=True,
        env={**os.environ, **environment}, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    identity, _, notes = done.stdout.strip().partition(" ")
    assert notes == "['a sentence after 2', 'a sentence after 3']"  # and nothing was lost, or printed
    return identity


def needs(package: str) -> pytest.MarkDecorator:
    spec = find_spec(package)
    missing = spec is None or spec.origin is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed: pip install 'marft[{package}]'")


@pytest.mark.slow
@needs("wandb")
def test_weights_and_biases_offline(tmp_path: Path) -> None:
    identity = begun_and_gone_on(
        tmp_path, "{ name = 'wandb', tags = ['a'] }", WANDB_MODE="offline", WANDB_DIR=str(tmp_path)
    )
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert [file.name for file in files] == [f"run-{identity}.wandb"] * 2  # which wandb sync makes one of
    written = [file.read_bytes() for file in files]
    for word in (b"reward", b"agents/actor/kl", b"training.steps", b"chain_sum"):
        assert word in written[0]
    tables = "".join(file.read_text() for file in tmp_path.glob("wandb/offline-run-*/files/media/table/*.json"))
    assert "a sentence after 2" in tables
    assert "a sentence after 3" in tables


@pytest.mark.slow
@needs("wandb")
def test_weights_and_biases_without_a_key_says_so_and_asks_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "WANDB_DIR": str(tmp_path)}
    environment.pop("WANDB_API_KEY", None)
    done = subprocess.run(
        [sys.executable, "-c", BEGIN_AND_GO_ON, str(tmp_path), "[{ name = 'wandb', mode = 'online' }]"], capture_output=True,
        text=True, env=environment, timeout=100, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "no key of Weights & Biases" in done.stdout


@pytest.mark.slow
@needs("mlflow")
def test_mlflow_in_files(tmp_path: Path) -> None:
    store = tmp_path / "store"
    sink = f"{{ name = 'mlflow', tracking_uri = 'file://{store}', experiment = 'mine', tags = {{ who = 'me' }} }}"
    identity = begun_and_gone_on(
        tmp_path, sink, MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_DISABLE_TELEMETRY="true"
    )  # data bases take longer to make than this test may
    (run,) = {file.parents[1] for file in store.glob("*/*/metrics/*")}
    history = [line.split()[1:3] for line in (run / "metrics/reward").read_text().splitlines()]
    assert history == [["0.1", "1"], ["0.2", "2"], ["0.3", "3"]]
    assert (run / "metrics/agents/actor/kl").is_file()
    assert (run / "metrics/pass_2").is_file()
    assert (run / "params/training.steps").read_text() == "2"
    assert (run / "tags/marft.run").read_text() == identity
    assert (run / "tags/who").read_text() == "me"
    assert (run / "tags/note of step 000002.1").read_text() == "a sentence after 2"
    assert "status: 3" in (run / "meta.yaml").read_text()  # finished
    assert "experiment_id" in (run / "meta.yaml").read_text()


@pytest.mark.slow
@needs("trackio")
def test_trackio_on_this_machine(tmp_path: Path) -> None:
    begun_and_gone_on(
        tmp_path, "{ name = 'trackio', project = 'mine' }", TRACKIO_DIR=str(tmp_path / "kept"), HF_HUB_OFFLINE="1"
    )
    (file,) = (tmp_path / "kept").glob("*mine*.db")
    with sqlite3.connect(file) as base:
        rows = base.execute("select run_name, step, metrics from metrics order by step").fetchall()
        alerts = base.execute("select text from alerts").fetchall()
        (config,) = base.execute("select config from configs").fetchone()
    assert len({row[0] for row in rows}) == 1
    assert [(step, json.loads(metrics)["reward"]) for _, step, metrics in rows] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert [text for (text,) in alerts] == ["a sentence after 2", "a sentence after 3"]
    assert json.loads(config)["training.steps"] == 2
