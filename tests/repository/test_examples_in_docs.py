"""Every example in the docs works: recipes are read, commands are parsed, Python runs, sentences are those of the code."""

from __future__ import annotations
import __future__

import ast
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import typer.main

from marft.cli.errors import DEBUG_FLAG
from marft.cli.main import app
from marft.cli.options import parse_overrides
from marft.config import RunSettings, load_recipe, parse_recipe
from marft.config.team_changes import LIKE_KEY, TEAM_TABLES, TeamChange, apply_team_change
from marft.examples import plugins
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from marft_lab.federated.settings import parse_federation
from marft_lab.safety.suite import SuiteSettings
from tests.docs import ROOT, Block, blocks, inline
from tests.fuzzing import OURS
from tests.helpers import recipe
from tests.nights import NIGHT
from tests.plugin_kinds import KINDS
from tests.sources import source, source_files

# bash: a script, which test_wheel.py runs
LANGUAGES = {"bash", "csv", "output", "python", "sh", "text", "toml", "yaml"}
NOT_OURS = {  # commands that are somebody else's, and why they are not looked at
    "cd": "changes the folder",
    "git": "fetches somebody else's repository",
    "docker": "needs its daemon, and a GPU",
    "pip": "an installation takes a network and minutes",
    "/opt/theirs/bin/pip": "the same",
    "vllm": "vLLM is no dependency",
    "export": "sets a variable of the shell",
    "ray": "starts a cluster, or asks one",
    ".venv/bin/pre-commit": "changes the checkout",
}
NO_RECIPE = ("project",)  # tables of a pyproject.toml
NEEDS_A_RUN = "docs/export.md"
FOLLOWED = {  # from top to bottom, by test_real_team.py and test_tutorials.py
    "docs/own_environment.md", "docs/real_team.md", "docs/tutorial_data_and_reward.md", "docs/tutorial_langgraph.md",
    "docs/tutorial_tool.md",
}  # fmt: skip
NEEDS_A_SERVER = "docs/ship.md"  # test_serving_mcp.py and test_serving_a2a.py have one
LATER = set() if NIGHT else {"docs/python.md"}  # a minute; test_python.py does the same in parts
PYTHON = sorted({block.page for block in blocks("python")} - FOLLOWED - {NEEDS_A_SERVER} - LATER)


def test_every_block_says_its_language() -> None:
    assert [f"{block.place}: {block.language!r}" for block in blocks() if block.language not in LANGUAGES] == []


@pytest.mark.parametrize(
    "block", [block for block in blocks("toml") if block.page not in FOLLOWED], ids=lambda block: block.place
)
def test_every_recipe_is_accepted(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "problems").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    for data in blocks("csv"):
        (tmp_path / "capitals.csv").write_text(data.text)
    text = block.text
    for theirs, ours in {**OURS, "my_package.guess:Guess": "marft.examples.plugins:Guess"}.items():
        text = text.replace(theirs, ours)
    table = tomllib.loads(text)
    if set(table) <= set(NO_RECIPE):
        groups = table["project"]["entry-points"]
        assert {group.removeprefix("marft.") for group in groups} <= set(KINDS)
        return
    if {"sites", "combine", "privacy"} & set(table):
        sites = {name: {"recipe": "demo"} for name in ("north", "south")}
        parse_federation({"name": "shown", "sites": sites, **table}, block.place, tmp_path)
        return
    if set(table) <= set(SuiteSettings.model_fields):
        SuiteSettings.model_validate(table)
        return
    if set(table) <= set(TEAM_TABLES) and any(LIKE_KEY in agent for agent in table.get("agents", ())):
        apply_team_change(trained_for(table["agents"]), TeamChange("shown", table))
        return
    whole = {"agents", "policies", "models"} & set(table)
    parse_recipe(
        {**recipe(), **table} if not whole else {"name": "shown", "environment": recipe()["environment"], **table}
    )


def trained_for(seats: list[dict[str, str]]) -> RunSettings:
    """A chain of the agents that seats of another team are like."""
    roles = dict.fromkeys(seat.get(LIKE_KEY, seat["role"]) for seat in seats)
    agents = [{"role": role, "policy": "one", "answers": role == [*roles][-1]} for role in roles]
    return parse_recipe({**recipe(), "policies": {"one": {"model": "base"}}, "agents": agents})


@pytest.mark.parametrize("block", list(blocks("sh")), ids=lambda block: block.place)
def test_every_command_can_be_typed(block: Block) -> None:
    lines = block.text.replace("\\\n", " ").splitlines()
    for line in filter(None, (line.partition("#")[0].strip() for line in lines)):
        if not (block.page in FOLLOWED and re.match(r"python \w+\.py", line)):  # a script that the page writes
            check(line, block.place)


def test_commands_within_sentences_exist() -> None:
    found = list(inline("marft"))
    assert len(found) > 40
    for page, line in found:
        for part in re.split(r"&&|;", line):
            words = typed(part)
            if words[:1] == ["marft"] and len(words) > 1 and not words[1].startswith("-"):
                known = {option for parameter in command(words[1]).params for option in parameter.opts}
                settings = {f"--{key}" for key in RunSettings.model_fields}
                options = {word for word in words[2:] if word.startswith("--") and "." not in word}
                assert options <= known | settings | {DEBUG_FLAG}, f"{page}: {line}"


def typed(line: str) -> list[str]:
    """The words of a command, without where its output goes."""
    words = shlex.split(line)
    return words[: words.index(">")] if ">" in words else words


def check(line: str, place: str) -> None:
    """See that a line of a terminal could be typed.

    Raises:
        AssertionError: a command, an option, a setting, a module or a target is not there.
    """
    words = typed(line)
    if words[0] == "marft":
        check_marft(words[1:], place)
    elif words[0] == "make":
        targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
        assert set(words[1:]) <= set(targets), place
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]), place
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), place
    else:
        assert words[0] in NOT_OURS, f"{place}: what is {words[0]!r}? say in NOT_OURS why it is not looked at"


def check_marft(words: list[str], place: str) -> None:
    if words[0].startswith("-"):
        assert words[0] in ("--version", "--install-completion"), place
        return
    found = command(words[0])
    while hasattr(found, "get_command"):
        words = words[1:]
        found = found.get_command(click.Context(found), words[0])
        assert found is not None, f"{place}: no command is called {words[0]}"
    try:
        context = found.make_context(words[0], words[1:])
    except click.ClickException as error:
        raise AssertionError(f"{place}: {error.format_message()}") from error
    if context.args and words[0] != "check-env":  # whose settings are an environment's
        changes = parse_overrides(context, Path(words[1]))  # type: ignore[arg-type]
        load_recipe("demo", changes)


@cache
def command(name: str) -> click.Command:
    """One of ours."""
    group = typer.main.get_command(app)
    found = group.get_command(click.Context(group), name)  # type: ignore[attr-defined]
    assert found is not None, f"no command is called {name}"
    return found  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("page", PYTHON)
def test_python_runs_from_top_to_bottom(
    page: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(a_run(tmp_path_factory) if page == NEEDS_A_RUN else tmp_path_factory.mktemp("python"))
    names = {**vars(plugins), "__name__": "docs"}  # whose imports parts are shown without
    for block in blocks("python"):
        if block.page == page:
            code = compile(block.text, block.place, "exec", __future__.annotations.compiler_flag, dont_inherit=True)
            exec(code, names)
    if page == NEEDS_A_RUN:
        assert names["plan"]
        assert names["answer"]


def a_run(folders: pytest.TempPathFactory) -> Path:
    """A folder with a run of the demo in it, as after its last step."""
    folder = folders.mktemp("elsewhere")
    small = {
        "output": str(folder / "runs"), "training.steps": "1", "rollout.tasks_per_step": "1", "algorithm.critic.warmup_steps": "0",
        "rollout.samples_per_task": "2", "algorithm.minibatches": "1", "device": "cpu", "threads": "1",
    }  # fmt: skip
    run = RunFolder.create(load_recipe("demo", [word for key, value in small.items() for word in (f"--{key}", value)]))
    train(run.settings(), run)
    (run.checkpoints / "step_000001").rename(run.checkpoints / "step_000030")
    (run.episodes / "step_000001.parquet").rename(run.episodes / "step_000030.parquet")
    return folder


def test_what_contributing_shows_is_what_ships() -> None:
    """``examples/plugins.py`` has every method that the page shows, to the letter."""
    ships = methods(source("marft/examples/plugins.py").read_text(encoding="utf-8"))
    shown = [name for block in blocks("python") if block.page == "CONTRIBUTING.md" for name in methods(block.text)]
    assert len(shown) > 5
    assert set(shown) <= set(ships)


def methods(text: str) -> list[tuple[str, str]]:
    """Return ``(class, source)`` of every method. Docstrings, which the page leaves out, are dropped."""
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    for method in (node for cls in classes for node in cls.body if isinstance(node, functions)):
        method.body = method.body[1:] if ast.get_docstring(method) else method.body
    return [(cls.name, ast.unparse(node)) for cls in classes for node in cls.body if isinstance(node, functions)]


@pytest.mark.slow
@pytest.mark.parametrize("sentence", [block.text for block in blocks("output")])
def test_the_sentences_of_troubleshooting_are_those_of_the_code(sentence: str) -> None:
    """Most of each is what texts of the code always say; the rest is what they are filled in with."""
    said: set[int] = set()
    for pieces in fixed():
        if all(piece in sentence for piece in pieces):  # what is said nowhere takes no regular expression
            found = re.search(".*?".join(f"({re.escape(piece)})" for piece in pieces), sentence, re.DOTALL)
            for number in range(1, len(pieces) + 1) if found else ():
                said.update(range(*found.span(number)))  # type: ignore[union-attr]
    assert len(said) > 0.4 * len(sentence), "".join(c if at in said else "_" for at, c in enumerate(sentence))


@cache
def fixed() -> frozenset[tuple[str, ...]]:
    """What is always the same, in order, of every text of the code that is long enough to be known by."""
    found = set()
    for file in source_files(".py").values():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            pieces = tuple(piece for piece in _pieces(node) if piece)
            if sum(map(len, pieces)) > 10:
                found.add(pieces)
    return frozenset(found)


def _pieces(node: ast.AST) -> Iterator[str]:
    """What of a text is always the same."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n\n" not in node.value:
        yield from re.sub(r"\{\{|\}\}|\{[^{}]*\}", "\0", node.value).split("\0")
    elif isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _pieces(value) if isinstance(value, ast.Constant) else ()
