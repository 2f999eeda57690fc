"""Code of users runs where a recipe names it, and where its own modules import it: no library finds it by chance."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import py_compile
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from marft.cli import search_path
from marft.cli.handlers import compare
from marft.common import user_modules
from marft.common.processes.child_process import python_command
from marft.config import load_recipe, parse_recipe
from marft.config.models import ModelSettings
from marft.config.plugins import import_object
from marft.models.adapter_files import read_lora_settings
from marft.models.tokenizer_format import load_config
from marft.runs.export.manifest import load_export
from marft.runs.export.recipe import load_settings, read_recipe_table
from marft_lab.shadow.setup import ShadowRequest
from marft_serve.serving.loader import load_team
from marft_serve.serving.settings import load_served_team
from tests.helpers import recipe
from tests.marft.evaluation.test_gates import runs as evaluated_runs
from tests.marft_serve.test_export_hostile import HOLDS, written
from tests.nights import BY_NIGHT, NIGHT

# Ways in which a module imports another by its name: what a reward function returns.
BY_NAME = [
    f"{head}\ndef reward(episode): return {value}"
    for head, value in (
        ("import importlib.util", "2.0 if importlib.util.find_spec('{m}_b') else None"),
        ("import importlib.util", "2.0 if importlib.util.find_spec('{m}_p.inner') else None"),
        ("import pkgutil", "pkgutil.resolve_name('{m}_b:VALUE')"),
        ("import pkgutil", "pkgutil.resolve_name('{m}_b.VALUE')"),
        ("import runpy", "runpy.run_module('{m}_b')['VALUE']"),
        ("import pydoc", "pydoc.locate('{m}_b').VALUE"),
        ("import functools, importlib", "functools.partial(importlib.import_module, '{m}_b')().VALUE"),
        ("from importlib import resources", "2.0 if resources.files('{m}_p').joinpath('deep.py').is_file() else None"),
        ("import threading\ndef work(): import {m}_b", "threading.Thread(target=work).run() or 2.0"),
    )
] + [
    "import logging.config\nTABLE = {{'version': 1, 'disable_existing_loggers': False, 'filters': {{'f': {{'()': '{m}_b.f'}}}}}}"
    "\ndef reward(episode): return logging.config.dictConfig(TABLE) or 2.0",
    "from unittest.mock import patch\ndef reward(episode):\n    with patch('{m}_b.VALUE', 2.0):\n"
    "        import {m}_b\n        return {m}_b.VALUE",
    "from unittest.mock import patch\n@patch('{m}_b.VALUE', 2.0)\ndef reward(episode):\n"
    "    import {m}_b\n    return {m}_b.VALUE",
    "from unittest.mock import patch\n@patch.dict('{m}_b.TABLE', {{'a': 2.0}})\ndef reward(episode):\n"
    "    import {m}_b\n    return {m}_b.TABLE['a']",
]  # fmt: skip
PLANTED = ("brotli", "brotlicffi", "h2", "socks", "orjson", "zstandard", "uvloop")  # that libraries try to import
MINE = "mine_of_users"  # a prefix of modules that the tests write


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """No module and no folder of one test is another's."""
    before = list(user_modules._roots)
    yield
    user_modules._roots[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0].startswith(MINE)]:
        del sys.modules[name]


def put(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def rewarded(folder: Path, call: str) -> Any:
    """The function that a recipe in a folder names as a reward."""
    run = parse_recipe({**recipe(), "rewards": [{"name": "function", "call": call}], "recipe_folder": str(folder)})
    assert run.rewards
    return import_object(call)


def plant_bytecode(file: Path, source: str) -> None:
    """Put bytecode of another source where Python would take it for that of a file."""
    other = file.with_name("other.py")
    other.write_text(source.ljust(len(file.read_text())))
    file.write_text(file.read_text().ljust(len(other.read_text())))
    os.utime(other, (1_000_000_000, 1_000_000_000))
    os.utime(file, (1_000_000_000, 1_000_000_000))
    target = Path(importlib.util.cache_from_source(str(file)))
    target.parent.mkdir(exist_ok=True)
    py_compile.compile(str(other), str(target), dfile=str(file))
    other.unlink()


class TestOfARecipe:
    def test_no_library_finds_what_lies_beside_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put(tmp_path, {f"{MINE}_a.py": "def reward(episode): return 1.0", f"{MINE}_planted.py": "1 / 0"})
        monkeypatch.chdir(tmp_path)
        assert rewarded(tmp_path, f"{MINE}_a:reward")(None) == 1.0
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"{MINE}_planted")
        assert importlib.util.find_spec(f"{MINE}_planted") is None
        assert str(tmp_path) not in sys.path

    @pytest.mark.parametrize(
        "source",
        [
            "import {m}_b\ndef reward(episode): return {m}_b.VALUE",
            "from {m}_b import VALUE\ndef reward(episode): return VALUE",
            "def reward(episode):\n    import {m}_b\n    return {m}_b.VALUE",
            "import importlib\ndef reward(episode): return importlib.import_module('{m}_b').VALUE",
            "from {m}_p.inner import VALUE\ndef reward(episode): return VALUE",
            "import {m}_p.inner\ndef reward(episode): return {m}_p.inner.VALUE",
            "import {m}_n.inner\ndef reward(episode): return {m}_n.inner.VALUE",
            *BY_NAME,
        ],
    )
    def test_a_module_imports_its_neighbors(self, source: str, tmp_path: Path) -> None:
        put(tmp_path, {
            f"{MINE}_a.py": source.format(m=MINE), f"{MINE}_b.py": "VALUE, TABLE, f = 2.0, {}, dict",
            f"{MINE}_p/__init__.py": f"from . import inner\nimport {MINE}_b", f"{MINE}_n/inner.py": "VALUE = 2.0",
            f"{MINE}_p/inner.py": "from .deep import VALUE",
            f"{MINE}_p/deep.py": f"from {MINE}_b import VALUE",
        })  # fmt: skip
        assert rewarded(tmp_path, f"{MINE}_a:reward")(None) == 2.0

    @pytest.mark.parametrize("call", ["importlib.import_module", "importlib.util.find_spec", "pkgutil.resolve_name"])
    def test_no_library_finds_it_by_its_name(self, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        head = f"import importlib.util, pkgutil\ndef find(name): return {call}(name)"
        library = put(tmp_path / "installed", {f"{MINE}_library.py": head})
        monkeypatch.syspath_prepend(library)
        source = f"from {MINE}_library import find\ndef reward(episode): return find('{MINE}_b')"
        put(tmp_path, {f"{MINE}_a.py": source, f"{MINE}_b.py": "1 / 0"})
        reward = rewarded(tmp_path, f"{MINE}_a:reward")
        if call.endswith("find_spec"):
            assert reward(None) is None
        else:
            with pytest.raises(ModuleNotFoundError):
                reward(None)

    @pytest.mark.parametrize("call", ["importlib.import_module", "__import__", "pkgutil.resolve_name"])
    def test_an_import_that_is_handed_to_a_thread_says_why_it_finds_nothing(self, call: str, tmp_path: Path) -> None:
        head = "import importlib, pkgutil\nfrom concurrent.futures import ThreadPoolExecutor\n"
        body = f"    with ThreadPoolExecutor(1) as pool: return pool.submit({call}, '{MINE}_b').result()"
        put(tmp_path, {f"{MINE}_a.py": f"{head}def reward(episode):\n{body}", f"{MINE}_b.py": ""})
        with pytest.raises(ModuleNotFoundError, match="hand over a function of your module that imports it"):
            rewarded(tmp_path, f"{MINE}_a:reward")(None)

    def test_a_thread_that_asks_for_a_module_is_told_that_there_is_none(self, tmp_path: Path) -> None:
        rewarded(put(tmp_path, {f"{MINE}_a.py": "reward = print", f"{MINE}_b.py": ""}), f"{MINE}_a:reward")
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(importlib.util.find_spec, f"{MINE}_b").result() is None

    def test_a_project_has_its_modules_in_src(self, tmp_path: Path) -> None:
        put(tmp_path, {
            "pyproject.toml": "", f"{MINE}_a.py": f"from {MINE}_p.b import reward",
            f"src/{MINE}_p/b.py": "def reward(episode): return 3.0",
        })  # fmt: skip
        assert rewarded(tmp_path, f"{MINE}_a:reward")(None) == 3.0

    def test_the_source_runs_whatever_bytecode_lies_beside_it(self, tmp_path: Path) -> None:
        file = put(tmp_path, {f"{MINE}_a.py": "def reward(episode): return 1.0"}) / f"{MINE}_a.py"
        plant_bytecode(file, "def reward(episode): return 666.0")
        assert rewarded(tmp_path, f"{MINE}_a:reward")(None) == 1.0

    def test_which_file_runs_is_logged(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        put(tmp_path, {f"{MINE}_a.py": "def reward(episode): return 1.0"})
        rewarded(tmp_path, f"{MINE}_a:reward")
        assert caplog.messages == [f"runs {tmp_path / MINE}_a.py"]

    def test_a_module_that_is_nowhere_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"neither installed nor in .*, nor beside the recipe"):
            rewarded(tmp_path, f"{MINE}_gone:reward")


def export_with(folder: Path, files: Mapping[str, str], **changes: Any) -> Path:
    """An export that brings files, and lists them."""
    folder.mkdir(exist_ok=True)
    return written(put(folder, files), {**HOLDS, **changes})


TEAM = {"organization": "program", "call": f"{MINE}_t:solve"}
SOLVE = "def solve(task, clients): return 'checked'"


class TestOfAnExport:
    @pytest.fixture
    def export(self, tmp_path: Path) -> Path:
        return export_with(tmp_path / "theirs", {f"code/{MINE}_t.py": SOLVE}, team=TEAM)

    def test_its_code_runs_where_it_is_trusted_alone(self, export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = str(export / "code")
        monkeypatch.chdir(export)
        with pytest.raises(ValueError, match="say --trust-code"):
            read_recipe_table(load_export(export))
        with pytest.raises(ValueError, match="neither installed"):
            import_object(TEAM["call"], {"recipe_folder": folder})
        read_recipe_table(load_export(export), trust_code=True)
        assert import_object(TEAM["call"], {"recipe_folder": folder})(None, None) == "checked"

    @pytest.mark.parametrize("swapped", [f"{MINE}_t.py", f"{MINE}_b.py"])
    def test_a_source_that_was_swapped_after_the_check_is_not_run(self, swapped: str, tmp_path: Path) -> None:
        files = {f"code/{MINE}_t.py": f"import {MINE}_b\n{SOLVE}", f"code/{MINE}_b.py": "HERE = 1"}
        path = export_with(tmp_path / "theirs", files, team=TEAM)
        table = read_recipe_table(load_export(path), trust_code=True)
        (path / "code" / swapped).write_text(f"HERE = 2\n{SOLVE}")
        with pytest.raises(ValueError, match=f"{swapped} has changed since its export was checked"):
            import_object(TEAM["call"], table)

    def test_neither_bytecode_nor_a_neighbor_that_came_later_is_run(self, tmp_path: Path) -> None:
        team = f"try:\n    import {MINE}_late\nexcept ImportError:\n    {MINE}_late = None\nfrom . import b\n"
        files = {
            f"code/{MINE}_p/__init__.py": "",
            f"code/{MINE}_p/t.py": team,
            f"code/{MINE}_p/b.py": "HERE = 'checked'",
        }
        path = export_with(tmp_path / "theirs", files, team={**TEAM, "call": f"{MINE}_p.t:b"})
        table = read_recipe_table(load_export(path), trust_code=True)
        put(path, {f"code/{MINE}_late.py": "1 / 0", f"{MINE}_late.py": "1 / 0"})
        inner = path / "code" / f"{MINE}_p" / "b.py"
        before = inner.stat()
        cached = Path(importlib.util.cache_from_source(str(inner)))
        cached.parent.mkdir()
        other = put(tmp_path, {"other.py": "HERE = 'hidden!'"}) / "other.py"
        os.utime(other, (before.st_atime, before.st_mtime))
        py_compile.compile(str(other), str(cached), dfile=str(inner))
        assert import_object(f"{MINE}_p.t:b", table).HERE == "checked"
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(f"{MINE}_p.later")

    @pytest.mark.parametrize(
        "name",
        [
            "brotli.py", "H2.PY", "a/b/h2.py", "brotli.pyc", "__pycache__/brotli.cpython-311.pyc", "brotli.so",
            "brotli.cpython-311-x86_64-linux-gnu.so", "lib.so.1", "evil.pth", "lib.zip", "lib.egg", "lib.whl",
            "code/__pycache__/t.cpython-311.pyc", "code/__pycache__/x", "evil.dist-info/entry_points.txt",
            "tokenizer.json", "special_tokens_map.json", "chat_template.jinja", "adapter_model.bin", "vocab.txt",
            "merges.txt", "model.safetensors", "pytorch_model.bin", "weights.pt", "rows.npz", "policies/a/notes.md",
        ],
    )  # fmt: skip
    def test_what_something_could_load_is_refused_where_it_is_not_listed(self, name: str, export: Path) -> None:
        put(export, {name: ""})
        with pytest.raises(ValueError, match=f"{name} was not written with it"):
            load_export(export)

    @pytest.mark.parametrize("name", ["code/t.pyc", "code/__pycache__/t.cpython-311.pyc", "code/t.so", "lib.zip"])
    def test_compiled_code_is_refused_where_it_is_listed(self, name: str, tmp_path: Path) -> None:
        path = export_with(tmp_path / "theirs", {name: ""})
        with pytest.raises(ValueError, match=f"lists {name}: an export brings code as source alone"):
            load_export(path)

    def test_other_files_are_told_and_never_opened(self, export: Path, caplog: pytest.LogCaptureFixture) -> None:
        put(export, {"notes.txt": "mine", ".gitattributes": ""})
        os.mkfifo(export / "pipe")  # whoever opens it waits for ever
        export_read = load_export(export)
        assert export_read.unlisted == (".gitattributes", "notes.txt", "pipe")
        read_recipe_table(export_read, trust_code=True)
        assert f"{export}: .gitattributes, notes.txt, pipe: not in team.json, and not opened" in caplog.messages

    def test_what_an_evaluation_leaves_in_it_is_in_nobodys_way(self, export: Path) -> None:
        put(export, {"runs/evaluated/theirs/evaluations/base-greedy.json": "{}"})
        assert load_export(export).unlisted == ("runs/evaluated/theirs/evaluations/base-greedy.json",)
        assert user_modules.subprocess_env(str(export / "code")) == {"PYTHONDONTWRITEBYTECODE": "1"}
        assert user_modules.subprocess_env(str(export.parent)) == {}

    @pytest.mark.parametrize("name", ["adapter_model.bin", "tokenizer.json"])
    def test_a_run_that_begins_with_its_weights_reads_what_is_listed_alone(self, name: str, tmp_path: Path) -> None:
        files = {"policies/a/adapter_config.json": "{}", "models/base/config.json": "{}"}
        path = export_with(tmp_path / "theirs", files)
        for folder in (path / "policies" / "a", path / "models" / "base"):
            put(folder, {name: ""})
        with pytest.raises(ValueError, match=f"policies/a/{name} was not written with it"):
            read_lora_settings(path / "policies" / "a")
        with pytest.raises(ValueError, match=f"models/base/{name} was not written with it"):
            load_config(ModelSettings(path=str(path / "models" / "base")))
        (path / "policies" / "a" / name).unlink()
        (path / "policies" / "a" / "adapter_config.json").write_text("[]")
        with pytest.raises(ValueError, match=r"policies/a/adapter_config\.json is damaged"):
            read_lora_settings(path / "policies" / "a")

    @pytest.mark.parametrize("named", ["data/rows.csv", "data"])
    def test_a_recipe_names_no_file_that_is_not_listed(self, named: str, tmp_path: Path) -> None:
        path = export_with(tmp_path / "theirs", {}, environment={"name": "table", "path": named})
        put(path, {"data/rows.csv": "question,answer"})
        with pytest.raises(ValueError, match=rf"environment\.path of recipe\.toml names {named}, which team\.json"):
            read_recipe_table(load_export(path))

    def test_a_folder_that_is_a_link_is_refused(self, export: Path, tmp_path: Path) -> None:
        (export / "policies").symlink_to(put(tmp_path / "outside", {"a": ""}))
        with pytest.raises(ValueError, match="policies is a link to another folder"):
            load_export(export)

    def test_it_is_not_trusted_where_its_code_is_named_beside_it(self, tmp_path: Path) -> None:
        path = export_with(tmp_path / "theirs", {f"code/{MINE}_t.py": SOLVE}, team={"organization": "chain"})
        table = read_recipe_table(load_export(path))
        user_modules.add_folder(path / "code")
        with pytest.raises(ValueError, match="neither installed"):
            import_object(TEAM["call"], table)

    def test_its_recipe_is_not_read_past_the_check(self, export: Path) -> None:
        with pytest.raises(ValueError, match="is the recipe of an export; name the export"):
            load_recipe(export / "recipe.toml")

    @pytest.mark.parametrize(
        ("recipe", "says"),
        [
            (
                {"tools": {"x": {"name": "function", "call": "marft.common.atomic:write_file"}}},
                "tools.x.call = marft.common.atomic",
            ),
            (
                {"environment": {"name": "table", "grading": "marft_serve.gateway.program_runner:call_function"}},
                "environment.grading",
            ),
            ({"environment": {"name": "gymnasium", "game": "h2:Game-v0"}}, "environment.game = h2:Game-v0"),
            ({"environment": {"name": "pettingzoo", "game": "their.game"}}, "environment.game = their.game"),
            ({"environment": {"name": "pettingzoo", "game": "antigravity"}}, "environment.game = antigravity"),
            ({"environment": {"name": "gymnasium", "game": "gymnasium.x:load"}}, "environment.game = gymnasium.x:load"),
            ({"tools": {"x": {"name": "function", "call": "marft.examples.demo:train"}}}, "tools.x.call = marft.exam"),
        ],
    )
    def test_what_runs_code_by_another_name_is_told(self, recipe: dict[str, Any], says: str, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"would run code.*say --trust-code") as told:
            load_settings(load_export(export_with(tmp_path / "theirs", {}, **recipe)))
        assert says in str(told.value)

    @pytest.mark.parametrize(
        "recipe",
        [
            {"tools": {"x": {"name": "function", "call": "marft.examples.orders:multiply"}}},
            {"environment": {"name": "pettingzoo", "game": "pettingzoo.classic.connect_four_v3:env"}},
            {"environment": {"name": "gymnasium", "game": "CartPole-v1"}},
            {"environment": {"name": "textarena", "game": "kuhn"}},
        ],
    )
    def test_what_runs_no_code_of_its_author_asks_for_no_trust(self, recipe: dict[str, Any], tmp_path: Path) -> None:
        assert read_recipe_table(load_export(export_with(tmp_path / "theirs", {}, **recipe)))["name"] == "theirs"


@pytest.mark.slow
class TestProcesses:
    @pytest.fixture
    def planted(self, tmp_path: Path) -> Path:
        """A folder with modules that say that they were run."""
        said = tmp_path / "said"
        source = f"open({str(said)!r}, 'a').write(__name__ + '\\n')\n"
        return put(tmp_path / "here", {f"{name}.py": source for name in (*PLANTED, "json", "asyncio", "typing")})

    def said(self, planted: Path) -> str:
        file = planted.parent / "said"
        return file.read_text() if file.exists() else ""

    def test_one_of_ours_runs_nothing_of_the_working_folder(self, planted: Path) -> None:
        command = [word.replace("main(int", "print(int") for word in python_command("marft.rollout.workers.worker", 7)]
        done = subprocess.run(command, cwd=planted, capture_output=True, text=True, check=False)
        assert done.stdout == "7\n", done.stderr
        assert not self.said(planted)

    @pytest.mark.parametrize("module", [False, pytest.param(True, marks=BY_NIGHT)])
    def test_a_command_runs_what_a_recipe_names_and_nothing_else_of_its_folder(
        self, module: bool, planted: Path
    ) -> None:
        for name in ("json", "asyncio", "typing"):  # which Python itself takes from there with -m
            (planted / f"{name}.py").unlink()
        put(planted, {f"{MINE}_a.py": f"import {MINE}_b\ndef reward(episode): return 1.0", f"{MINE}_b.py": ""})
        rewards = [{"name": "function", "call": f"{MINE}_a:reward"}]
        (planted / "mine.toml").write_text(tomli_w.dumps(recipe(output=planted / "runs", rewards=rewards)))
        words = [sys.executable, "-m", "marft"] if module else [str(Path(sys.executable).parent / "marft")]
        env = os.environ if module else {**os.environ, "PYTHONPATH": ":"}  # either puts the folder on sys.path
        done = subprocess.run(
            [*words, "train", "mine.toml", "--dry-run"],
            cwd=planted,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert f"runs {planted / MINE}_a.py" in done.stderr
        assert not self.said(planted)

    def test_a_process_that_a_module_spawns_says_what_it_does_not_find(self, tmp_path: Path) -> None:
        body = "def work(): pass\ndef start():\n    p = m.get_context('spawn').Process(target=work)\n    p.start(); p.join()"
        put(tmp_path / "recipe", {f"{MINE}_a.py": f"import multiprocessing as m\n{body}"})
        main = (
            "from pathlib import Path\nfrom marft.common import user_modules\nif __name__ == '__main__':\n"
            f"    user_modules.add_folder(Path('recipe').resolve())\n    user_modules.import_user_module('{MINE}_a').start()"
        )
        command = [sys.executable, put(tmp_path, {"main.py": main}) / "main.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert f"No module named '{MINE}_a': a process that multiprocessing starts finds no modules" in done.stderr

    @pytest.mark.parametrize("path", [":", *(pytest.param(path, marks=BY_NIGHT) for path in ("here:", "."))])
    def test_the_command_itself_takes_no_library_from_an_export_that_is_its_working_folder(
        self, path: str, tmp_path: Path
    ) -> None:
        said = tmp_path / "said"
        export = export_with(tmp_path / "here", {})
        put(export, {f"{name}.py": f"open({str(said)!r}, 'w')" for name in ("typer", "click", "pydantic", "rich")})
        done = subprocess.run(
            [str(Path(sys.executable).parent / "marft"), "eval", "."], cwd=export, capture_output=True, text=True,
            check=False, env={**os.environ, "PYTHONPATH": path.replace("here", str(tmp_path))},
        )  # fmt: skip
        assert "was not written with it" in done.stderr
        assert not said.exists()


SERVED = {key: value for key, value in recipe().items() if key in ("name", "models", "policies", "agents")}
SAYS = "raise SystemExit(__name__)"  # a module that is run ends the test


def teams(planted: Path, work: Path) -> dict[str, Callable[[], object]]:
    """How commands load the team of a folder: ``marft serve``, and ``marft shadow`` as the second one."""
    asked = ShadowRequest(planted, "best", (), False, work, work)
    return {"serve": lambda: load_served_team(planted, "best"), "shadow": asked.load_team}


class TestOfCommands:
    @pytest.fixture(params=["serve", "shadow"])
    def command(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def test_a_module_in_the_root_of_an_export_is_refused_where_it_is_not_listed(
        self, command: str, tmp_path: Path
    ) -> None:
        export = export_with(tmp_path / "theirs", {}, **SERVED)
        put(export, {"brotli.py": SAYS})
        with pytest.raises(ValueError, match=r"brotli.py was not written with it"):
            teams(export, tmp_path)[command]()

    def test_and_never_found_by_a_library_where_it_is(
        self, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever makes an export writes its manifest too."""
        names = (*PLANTED, f"{MINE}_planted")
        export = export_with(tmp_path / "theirs", {f"{name}.py": SAYS for name in names}, **SERVED)
        monkeypatch.chdir(export)
        team = teams(Path(), tmp_path)[command]()
        with load_team(team):  # type: ignore[arg-type]
            found = {name: importlib.util.find_spec(name) for name in names if name not in sys.modules}
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module(f"{MINE}_planted")
        assert not [spec for spec in found.values() if spec and str(export) in str(spec.origin)]
        assert str(export) not in sys.path

    def test_nor_in_a_run_that_is_compared_and_the_working_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runs = list(map(Path, evaluated_runs(tmp_path)))
        for run in runs:
            put(run, {f"{name}.py": SAYS for name in (*PLANTED, f"{MINE}_planted")})
        monkeypatch.chdir(runs[0])
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep)
            patch.setattr(sys, "path", [str(runs[0]), "", *sys.path])
            search_path.clean_search_path()
            assert compare([Path(), runs[1]], ["accuracy < -50%"])
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module(f"{MINE}_planted")
            assert not {str(runs[0]), str(runs[1]), ""} & set(sys.path)

    @pytest.mark.slow
    @pytest.mark.skipif(not NIGHT, reason="the same without a process by day: make nightly")
    def test_nor_by_the_command_itself(self, tmp_path: Path) -> None:
        run, other = map(Path, evaluated_runs(tmp_path))
        put(run, {f"{name}.py": SAYS for name in (*PLANTED, "typer", "click", "pydantic", "rich", "numpy")})
        done = subprocess.run(
            [str(Path(sys.executable).parent / "marft"), "compare", ".", str(other)], cwd=run, capture_output=True, text=True,
            check=False, env={**os.environ, "PYTHONPATH": ":"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_the_manifest_of_an_export_is_the_one_that_is_known_by(tmp_path: Path) -> None:
    (tmp_path / "team.json").write_text(json.dumps({"format": "another"}))
    assert user_modules.enclosing_export(tmp_path) is None
    assert (
        user_modules.enclosing_export(export_with(tmp_path / "theirs", {"code/a.py": ""}) / "code")
        == tmp_path / "theirs"
    )
