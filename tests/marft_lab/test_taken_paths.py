"""Paths that are taken: ``~`` is the home folder, what is no regular file is refused, a byte order mark is no text."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

import pytest
import tomli_w
import typer

import marft.cli.main  # noqa: F401  makes the commands
from marft.agents.tools.skills import read_skill
from marft.cli.app import app
from marft.common import atomic
from marft.config import load_recipe, parse_recipe
from marft.config.team_changes import read_team_change
from marft.envs.table_rows import read_table
from marft.envs.tasks import read_tasks
from marft.runs.run_folder import RunFolder
from marft_lab.federated.settings import load_federation
from marft_lab.flows.network import read_network
from marft_lab.safety.suite import read_suite
from marft_lab.shadow.scorers import read_feedback
from marft_serve.traces.reader import read_objects
from marft_serve.traces.settings import SftSettings
from marft_serve.traces.types import SkipCounter
from tests.helpers import recipe

TABLE = {"name": "table", "question": "q", "answer": "a", "grading": "exact"}
ROWS = {
    ".csv": "q,a\n" + "".join(f"x{n},1\n" for n in range(40)),
    ".jsonl": "".join(f'{{"q": "x{n}", "a": "1"}}\n' for n in range(40)),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_recipes_paths_may_begin_at_home(home: Path) -> None:
    table = recipe("~/model", "~/runs")
    table["models"]["base"]["chat_template"] = "~/mine.jinja"
    table["policies"]["actor"]["adapter"] = "~/adapter"
    table["agents"][0]["skills"] = ["~/skill"]
    table["sft"] = {"traces": ["~/a.jsonl"]}
    table["tools"] = {"x": {"name": "mcp", "command": ["a"], "folder": "~/there", "log_file": "~root-is-nobody/x"}}
    table["agents"][1]["tools"] = ["x"]
    run = parse_recipe(table)
    assert (run.output, run.models["base"].path) == (f"{home}/runs", f"{home}/model")
    assert run.models["base"].chat_template == f"{home}/mine.jinja"
    assert run.policies["actor"].adapter == f"{home}/adapter"
    assert (run.agents[0].skills, SftSettings.from_run(run).traces) == ((f"{home}/skill",), (f"{home}/a.jsonl",))
    assert (run.tools["x"].folder, run.tools["x"].log_file) == (f"{home}/there", "~root-is-nobody/x")  # type: ignore[attr-defined]
    assert parse_recipe(recipe(), ("--output", "~/elsewhere")).output == f"{home}/elsewhere"


def test_commands_and_python_take_paths_at_home(home: Path) -> None:
    (home / "mine.toml").write_text(tomli_w.dumps(recipe()))
    assert load_recipe("~/mine.toml").recipe_folder == str(home)
    (home / "run").mkdir()
    (home / "run" / "config.toml").write_text("")
    assert RunFolder.open("~/run").path == home / "run"
    command = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
    found = command.make_context("train", ["~/mine.toml", "--init-from=~/run", "--training.steps", "2"]).params
    assert (found["recipe"], found["start_from"]) == (home / "mine.toml", home / "run")
    several = typer.main.get_command(app).commands["compare"]  # type: ignore[attr-defined]
    assert several.make_context("compare", ["~/a", "b~"]).params["runs"] == [home / "a", Path("b~")]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(codecs.BOM_UTF8 + tomli_w.dumps(recipe()).encode())
    assert load_recipe(tmp_path / "mine.toml").seed == 0
    (tmp_path / "traces.jsonl").write_bytes(codecs.BOM_UTF8 + b'{"a": 1}\n')
    assert [found for _, found in read_objects(tmp_path / "traces.jsonl", SkipCounter())] == [{"a": 1}]
    (tmp_path / "said.jsonl").write_bytes(codecs.BOM_UTF8 + b'{"session": "x", "score": 1}\n')
    assert read_feedback(tmp_path / "said.jsonl") == {"x": 1.0}
    (tmp_path / "team.toml").write_bytes(codecs.BOM_UTF8 + b'[team]\norganization = "chain"\n')
    assert read_team_change(tmp_path / "team.toml").name == "team"


@pytest.mark.parametrize("suffix", ROWS)
def test_a_table_may_begin_with_a_byte_order_mark(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"rows{suffix}").write_bytes(codecs.BOM_UTF8 + ROWS[suffix].encode())
    run = parse_recipe(recipe(environment={**TABLE, "path": str(tmp_path / f"rows{suffix}")}))
    assert read_tasks(run.environment, "train")[0].data["q"].startswith("x")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    "read",
    [
        load_recipe, load_federation, read_team_change, read_suite, read_network, read_feedback,
        lambda path: list(read_objects(path, SkipCounter())), lambda path: list(read_table(f"{path}.csv", "", "")),
        lambda path: list(read_table(f"{path}.jsonl", "", "")), lambda path: list(read_table(f"{path}.parquet", "", "")),
        lambda path: read_skill(str(path.parent / "skill")),
    ],
)  # fmt: skip
def test_what_is_no_regular_file_is_refused_at_once(read: object, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "it"
    (tmp_path / "skill").mkdir()
    for place in (path, *(Path(f"{path}{end}") for end in (".csv", ".jsonl", ".parquet")), tmp_path / "skill/SKILL.md"):
        if kind == "pipe":
            os.mkfifo(place)
        else:
            place.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=f"it is a {kind}, and only regular files are read|no suite at"):
        read(path)  # type: ignore[operator]


def test_what_is_there_and_regular_is_read(tmp_path: Path) -> None:
    assert atomic.check_regular_file(tmp_path / "not there") == tmp_path / "not there"
    with pytest.raises(OSError, match="it is a folder"):
        atomic.check_regular_file(tmp_path)
