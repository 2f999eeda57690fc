"""What of a recipe goes into an export: what the team needs to act, and neither secrets nor places of the machine."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from marft.config.load import parse_recipe, to_toml
from marft.inference.engine_settings import Vllm
from marft.runs.export.exporter import find_folder_references, list_local_folders
from marft.runs.export.manifest import Export, Manifest
from marft.runs.export.recipe import (
    PLACEHOLDER,
    ExportRecipe,
    describe_foreign_code,
    export_recipe,
    find_versions,
    read_recipe_table,
    trust_flag,
)
from marft.runs.run_folder import RunFolder
from marft_serve.serving.settings import build_served_table
from tests.helpers import recipe

ORGANIZATION = """
from their_package.helper import first
from marft.config.interfaces.organization import Organization
import numpy


class Mine(Organization):
    async def act(self, observation, agents):
        return await first(observation, agents)
"""

BARE: dict[str, Any] = {
    "name": "bare", "models": {}, "policies": {}, "agents": [], "team": {"organization": "chain"},
    "channel": {"name": "last"}, "environment": {"name": "demo"}, "rollout": {"max_steps": 1, "timeout_seconds": 1.0},
}  # fmt: skip


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of somebody's own, with a package in it."""
    package = tmp_path / "their_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "team.py").write_text(ORGANIZATION)
    (package / "helper.py").write_text("from . import words\n\n\nasync def first(observation, agents): ...\n")
    (package / "words.py").write_text("HELLO = 'hello'\n")
    (package / "unused.py").write_text("SECRET = 1\n")
    (package / "grading.py").write_text("def reward(episode):\n    return 1.0\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "their_package"]:
        del sys.modules[name]


def ship(folder: Path, **changes: Any) -> ExportRecipe:
    import tomllib

    run = parse_recipe(recipe(recipe_folder=str(folder), **changes))
    return export_recipe(tomllib.loads(to_toml(run)), folder)


class TestCode:
    def test_code_that_the_team_acts_with_goes_along_with_what_it_imports(self, theirs: Path) -> None:
        out = ship(theirs, team={"organization": "their_package.team:Mine"})
        assert sorted(out.code) == [f"code/their_package/{name}.py" for name in ("__init__", "helper", "team", "words")]
        assert "numpy" in find_versions(out.packages)
        assert out.omitted == []
        assert describe_foreign_code(out.table) == ["team.organization = their_package.team:Mine"]

    def test_code_that_judges_is_left_out_and_said_to_be(self, theirs: Path) -> None:
        reward = {"name": "function", "call": "their_package.grading:reward"}
        out = ship(theirs, rewards=[reward, {"name": "outcome"}])
        assert (out.code, [one["name"] for one in out.table["rewards"]]) == ({}, ["outcome"])
        assert out.omitted == [
            "rewards.0 (function): its code (their_package.grading:reward) is not needed to serve the team"
        ]

    def test_an_environment_with_files_of_the_author_is_left_out(self, theirs: Path) -> None:
        (theirs / "problems.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
        out = ship(theirs, environment={"name": "math", "path": str(theirs / "problems.jsonl")})
        assert out.table["environment"] == {"name": PLACEHOLDER}
        assert out.omitted == ["environment (math): its path is a file of the author's"]
        run = parse_recipe(out.table)
        with pytest.raises(ValueError, match="the environment was left out of this export"):
            run.environment.tasks("test")  # type: ignore[attr-defined]

    def test_a_program_goes_along_and_the_place_of_its_python_does_not(self, theirs: Path) -> None:
        (theirs / "team.py").write_text("import numpy\nimport other\n")
        (theirs / "other.py").write_text("")
        agents = recipe()["agents"]
        out = ship(theirs, agents=agents, team={
            "organization": "program", "command": ["python", "team.py"], "python": sys.executable,
        })  # fmt: skip
        assert sorted(out.code) == ["code/other.py", "code/team.py"]
        assert out.table["team"]["folder"] == "code"
        assert "team.folder" in out.paths
        assert out.omitted == ["team.python: it names a place on the machine of training; give your own"]
        assert "python" not in out.table["team"]
        assert "numpy" in find_versions(out.packages)

    def test_code_of_channels_and_tools_goes_along_too(self, theirs: Path) -> None:
        sys.path.insert(0, str(theirs))
        for name in ("helper", "words"):
            import_module(f"their_package.{name}")
        tools = {"x": {"name": "function", "call": "their_package.words:say"}}
        out = export_recipe({**BARE, "tools": tools, "channel": {"name": "their_package.helper:Channel"}}, theirs)
        assert sorted(out.code) == [f"code/their_package/{name}.py" for name in ("__init__", "helper", "words")]
        del tools["x"]
        out = export_recipe({**BARE, "tools": {"x": {"call": "their_package.words:say"}}}, theirs)
        assert sorted(out.code) == [f"code/their_package/{name}.py" for name in ("__init__", "words")]

    def test_what_asks_the_authors_servers_or_samples_with_his_code_is_left_out(self, theirs: Path) -> None:
        judge = {"name": "judge", "model": "big", "endpoint": {"extra_body": {}}}
        out = export_recipe({**BARE, "rewards": [judge], "engine": {"kind": "their_package.team:Engine"}}, theirs)
        assert out.table["rewards"] == []
        assert out.omitted == [
            "engine: one of the author's own; the in-process engine samples in its place",
            "rewards.0 (judge): it asks a server of the author's",
        ]
        assert "engine" not in out.table

    @pytest.mark.parametrize(
        ("kind", "said"),
        [
            ("local", []),
            ("process", []),
            (
                "vllm",
                [
                    "engine: vllm, which may not be where this is read; the in-process engine samples in its place, "
                    "unless it is asked for with --engine \"{ kind = 'vllm' }\""
                ],
            ),
        ],
    )
    def test_an_export_samples_in_process_and_says_so_where_another_engine_did(
        self, theirs: Path, kind: str, said: list[str]
    ) -> None:
        out = ship(theirs, engine={"kind": kind})
        assert ("engine" in out.table, out.omitted) == (False, said)
        for table in (recipe(), build_served_table(out.table)):
            asked = parse_recipe(table, ("--engine", "{ kind = 'vllm' }"))
            assert isinstance(asked.engine, Vllm)  # as an export's reader is told

    def test_a_function_that_is_called_names_no_folder_of_the_machine(self, theirs: Path) -> None:
        (theirs / "their_package" / "team.py").write_text("from . import words\n\n\ndef solve(task, clients): ...\n")
        program = {"organization": "program", "call": "their_package.team:solve"}
        out = ship(theirs, team=program)
        assert (out.table["team"]["folder"], out.paths, out.omitted) == ("code", ["team.folder"], [])
        assert str(theirs) not in str(out.table)

    def test_a_program_without_code_of_its_own_works_where_the_export_lies(self, theirs: Path) -> None:
        out = ship(theirs, team={"organization": "program", "command": ["sh", "-c", "echo"]})
        assert ("folder" in out.table["team"], out.paths, out.omitted) == (False, [], [])
        out = ship(theirs, team={"organization": "program", "command": ["sh"], "folder": "/usr"})
        assert out.omitted == ["team.folder: it names a place on the machine of training; give your own"]

    def test_commands_say_that_its_code_is_trusted_where_it_brings_some(self, theirs: Path) -> None:
        assert trust_flag(ship(theirs, team={"organization": "their_package.team:Mine"}).table) == " --trust-code"
        assert trust_flag(ship(theirs).table) == ""

    def test_who_reads_an_export_is_told_what_it_would_run(self, tmp_path: Path) -> None:
        out = ship(tmp_path, team={"organization": "program", "command": ["sh", "-c", "echo"]})
        (tmp_path / "recipe.toml").write_text(to_toml(parse_recipe(out.table)))
        export = Export(tmp_path, Manifest.model_construct(paths=()))
        with pytest.raises(ValueError, match=r"of its author's: team\.command = sh -c echo\. Read it, and say --trust"):
            read_recipe_table(export)
        assert read_recipe_table(export, trust_code=True)["name"] == "test"


class TestSecrets:
    def test_what_an_endpoint_is_sent_in_secret_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FAR_KEY", "sk-0123456789")
        models = {
            "base": {"path": "tiny"},
            "far": {"path": "m", "endpoint": {
                "url": "http://127.0.0.1:1/v1", "extra_body": {"user_key": "$FAR_KEY", "seed_bank": "a"},
            }},
        }  # fmt: skip
        policies = {"reasoner": {"model": "far", "train": "frozen"}, "actor": {"model": "base"}}
        out = ship(tmp_path, models=models, policies=policies)
        assert out.table["models"]["far"]["endpoint"]["extra_body"] == {"user_key": "$FAR_KEY", "seed_bank": "a"}
        assert not out.omitted
        assert "sk-0123456789" not in str(out.table)
        assert describe_foreign_code(out.table) == ["models.far.endpoint.url = http://127.0.0.1:1/v1"]

    def test_two_skills_of_one_name_are_two(self, tmp_path: Path) -> None:
        table = recipe()
        table["agents"][0]["skills"] = ["one/adding", "two/adding"]
        out = ship(tmp_path, agents=table["agents"])
        assert out.table["agents"][0]["skills"] == ["skills/adding", "skills/adding-1"]
        assert {key: str(value) for key, value in out.copied.items()} == {
            "skills/adding": "one/adding", "skills/adding-1": "two/adding",
        }  # fmt: skip
        assert out.paths == ["agents.0.skills.0", "agents.0.skills.1"]

    def test_a_chat_template_lies_in_it(self, tmp_path: Path) -> None:
        template = tmp_path / "mine.jinja"
        template.write_text("{{ messages }}")
        out = ship(tmp_path, models={"base": {"path": "tiny", "chat_template": str(template)}})
        assert out.table["models"]["base"]["chat_template"] == "templates/base.jinja"
        assert (out.copied, out.paths) == ({"templates/base.jinja": template}, ["models.base.chat_template"])

    def test_what_is_of_training_alone_stays(self, tmp_path: Path) -> None:
        table = ship(tmp_path, output=str(tmp_path / "runs"), rollout={"timeout_seconds": 77.0}).table
        assert table["rollout"] == {"max_steps": 32, "timeout_seconds": 77.0}
        assert not {"algorithm", "training", "checkpoints", "output", "recipe_folder", "device"} & set(table)
        assert str(tmp_path) not in str(table)


class TestPlaces:
    def test_the_key_or_the_line_that_names_a_folder_is_told_and_what_to_do(self, tmp_path: Path) -> None:
        (tmp_path / "recipe.toml").write_text('[[agents]]\ninstructions = "Read /tmp/x/rows.csv."\n')
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "team.py").write_text("import os\n\nROWS = '/tmp/x/rows.csv'\n")
        (tmp_path / "code" / "other.py").write_text("'/tmp/xyz /home/x'\n")
        (tmp_path / "broken.json").write_text("{/tmp/x/models/a")
        found = list(find_folder_references(tmp_path, ["/tmp/x", "/tmp/x/models"]))
        assert [(one.location, one.folder) for one in found] == [
            ("line 1 of broken.json", "/tmp/x/models"), ("line 3 of code/team.py", "/tmp/x"),
            ("agents.0.instructions of recipe.toml", "/tmp/x"),
        ]  # fmt: skip
        out = ExportRecipe(
            {}, code={"code/team.py": Path("/tmp/x/team.py")}, copied={"skills/adding": Path("/tmp/adding")}
        )
        said = [one.describe(out.find_source(one.file)) for one in found]
        assert said[1] == (
            "line 3 of code/team.py names /tmp/x, a folder of this machine: others can read that in the export, and "
            "have no such folder. If either matters, change /tmp/x/team.py and export again"
        )
        assert said[2].endswith("If either matters, change it in the recipe, train and export again")
        assert out.find_source("skills/adding/SKILL.md") == Path("/tmp/adding/SKILL.md")

    def test_are_the_recipes_the_runs_the_home_and_those_of_models(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", "/home/me")
        table = {"recipe_folder": "/work/team/", "models": {"a": {"path": "/models/a"}, "b": {"path": "tiny"}}}
        run = RunFolder(tmp_path / "run")
        assert set(list_local_folders(run, table)) == {"/work/team", "/home/me", "/models/a", str(run.path.resolve())}

    def test_without_places_nothing_is_found(self, tmp_path: Path) -> None:
        (tmp_path / "notes.md").write_text("/tmp/x")
        assert list(find_folder_references(tmp_path, [])) == []
