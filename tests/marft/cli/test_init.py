"""``marft init``: what it writes runs at once, and it takes nobody's place."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from marft.cli.app import app
from marft.cli.project_init import TEAM_KIND
from marft.cli.template.files import TEAM_TEMPLATES
from marft.cli.template.tables import generate_sums, guess_columns, inspect_table
from marft.config import RunSettings, load_recipe
from marft.config.plugins import plugin_names
from marft.envs.tasks import read_tasks
from tests.marft.cli.test_cli import run
from tests.nights import BY_NIGHT, NIGHT, some
from tests.satellites import NEEDS_ENVS

NAMES = ["README.md", "data.csv", "recipe.toml", "reward.py", "test_reward.py"]


def in_the_folder(folder: Path, *words: str) -> str:
    """Run a command as somebody would, in a process of its own → what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunSettings:
    """The recipe, with its own reward module."""
    monkeypatch.delitem(sys.modules, "reward", raising=False)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return load_recipe(folder / "recipe.toml")


class TestWhatItWrites:
    @pytest.mark.slow
    @pytest.mark.parametrize("team", TEAM_TEMPLATES if NIGHT else ["reasoner-actor"])
    @pytest.mark.skipif(not NIGHT, reason="a team is trained in a quarter of a minute: make nightly")
    def test_every_team_trains_at_once_and_its_reward_passes_its_test(
        self, capsys: pytest.CaptureFixture[str], here: Path, team: str
    ) -> None:
        said = run(capsys, "init", "mine", "--team", team)
        assert sorted(path.name for path in (here / "mine").iterdir()) == NAMES
        for command in ("cd mine", "pytest", "marft train recipe.toml", "marft show runs/first --worst"):
            assert command in said
        small = ("--training.steps", "2", "--rollout.tasks_per_step", "2")
        assert "trained 2 steps" in in_the_folder(here / "mine", "marft", "train", "recipe.toml", *small)
        assert "2 passed" in in_the_folder(here / "mine", "pytest", "-p", "no:cacheprovider")

    def test_its_commands_are_those_of_the_readme(self, capsys: pytest.CaptureFixture[str], here: Path) -> None:
        said = run(capsys, "init", "mine")
        block = (here / "mine" / "README.md").read_text().split("```")[1]
        assert " ".join(block.split()) in said

    @pytest.mark.slow
    def test_the_invented_rows_are_what_the_tiny_model_was_made_for(
        self, capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run(capsys, "init", "mine")
        environment = read(here / "mine", monkeypatch).environment
        demo = load_recipe("demo").environment
        like = read_tasks(demo, "train")[0].prompt.partition(":")[0]
        assert all(task.prompt.startswith(f"{like}: ") for task in read_tasks(environment, "train"))
        assert len(read_tasks(environment, "test")) >= 5
        assert len(read_tasks(environment, "validation")) >= 1

    @BY_NIGHT
    @pytest.mark.slow
    def test_a_table_of_ones_own_stays_where_it_is(
        self, capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (here / "towns.csv").write_text("country,region,capital\n" + "".join(f"c{n},r,t{n}\n" for n in range(40)))
        said = run(capsys, "init", "mine", "--data", "towns.csv", "--team", "single")
        assert "questions 'country', answers 'capital'" in said
        assert "knows only sums of small numbers" in said
        assert not (here / "mine" / "data.csv").exists()
        recipe = read(here / "mine", monkeypatch)
        assert 'path = "../towns.csv"' in (here / "mine" / "recipe.toml").read_text()
        task = read_tasks(recipe.environment, "train")[0]
        graded = recipe.environment.start(task, 0).grade  # type: ignore[attr-defined]
        assert graded(rf"It is \boxed{{{task.data['capital'].upper()}}}.") == (1.0, True)
        assert graded("It is t").reward == 0.0
        in_the_folder(here / "mine", "pytest", "-p", "no:cacheprovider")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("rows", "kind"),
        some(  # of which the first tries most
            [
                ([{"q": f"q {n}", 'a "quoted" {name}': 'yes "{}" \\'} for n in range(20)], "text"),
                ([{"q": f"q {n}", "a": ["no", n]} for n in range(20)], "list"),
                ([{"q": f"q {n}", "a": n / 2} for n in range(20)], "number"),
                ([{"q": f'"""\n{n}'} for n in range(20)], "none"),
                ([{"q": f"q {n}", "a": odd} for n, odd in enumerate([1e20, *range(19)])], "text"),
                (
                    [{"q": f"q {n}", "a": odd} for n, odd in enumerate([".5", "1_000", "nan", "1e5", *"abcdefghijk"])],
                    "text",
                ),
                ([{"q": f"q {n}", "a": odd} for n, odd in enumerate([10**400, *range(19)])], "text"),
                ([{"q": f"q {n % 15}", "a": "no" if n else ""} for n in range(20)], "text"),
            ],
            of=8,
        ),
    )
    def test_whatever_is_in_the_table_the_files_are_whole(
        self, capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, object]],
        kind: str,
    ) -> None:  # fmt: skip
        (here / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
        assert inspect_table(here / "mine.jsonl").kind == kind
        run(capsys, "init", ".", "--data", "mine.jsonl", "--model", "tiny")
        recipe = read(here, monkeypatch)
        assert read_tasks(recipe.environment, "train")
        assert read_tasks(recipe.environment, "test")
        in_the_folder(here, "pytest", "-p", "no:cacheprovider")

    def test_parquet_is_a_table_too(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"problem": ["1 + 1", "2 + 2"], "solution": [2, 4]}), tmp_path / "t.parquet")
        table = inspect_table(tmp_path / "t.parquet")
        assert (table.question, table.answer, table.kind, table.is_sums) == ("problem", "solution", "number", True)


@NEEDS_ENVS
class TestAnEnvironment:
    def test_is_a_package_that_bears_the_folders_name(self, capsys: pytest.CaptureFixture[str], here: Path) -> None:
        said = run(capsys, "init", "--kind", "environment", "games/my-env")
        assert "cd games/my-env" in said
        assert "marft check-env recipe.toml" in said
        folder = here / "games" / "my-env"
        assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
            "README.md", "pyproject.toml", "recipe.toml", "src/my_env/__init__.py", "src/my_env/environment.py",
            "tests/test_environment.py",
        ]  # fmt: skip
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        assert project["project"]["entry-points"]["marft.environments"] == {"my_env": "my_env.environment:MyEnv"}
        assert all("<<" not in path.read_text() for path in folder.rglob("*") if path.is_file())

    def test_needs_nothing_but_public_imports(self, capsys: pytest.CaptureFixture[str], here: Path) -> None:
        run(capsys, "init", "--kind", "environment", "plain_of_mine")
        code = (here / "plain_of_mine" / "src" / "plain_of_mine" / "environment.py").read_text()
        assert re.findall(r"^(?:import|from) \S+", code, re.MULTILINE) == ["import random", "import re", "import marft"]

    def test_its_recipe_can_be_read_from_the_folder_above(self, capsys: pytest.CaptureFixture[str], here: Path) -> None:
        """The project's own folder, of the same name, once took the place of the package."""
        run(capsys, "init", "--kind", "environment", "fourth_of_mine")
        assert load_recipe(here / "fourth_of_mine" / "recipe.toml").environment.tasks("train")

    def test_its_agents_can_remember_the_episode(self, capsys: pytest.CaptureFixture[str], here: Path) -> None:
        run(capsys, "init", "--kind", "environment", "third_of_mine")
        text = (here / "third_of_mine" / "recipe.toml").read_text()
        recipe = tomllib.loads(text.replace("# memory", "memory"))
        assert [agent["memory"] for agent in recipe["agents"]] == ["own", "own"]

    @BY_NIGHT
    def test_passes_every_check_from_anywhere(self, capsys: pytest.CaptureFixture[str], here: Path) -> None:
        run(capsys, "init", "--kind", "environment", "first_of_mine")
        said = run(capsys, "check-env", str(here / "first_of_mine" / "recipe.toml"), "--in-process", "--num-tasks", "1")
        assert "failed" not in said
        assert "warned" not in said

    @pytest.mark.slow
    @pytest.mark.skipif(not NIGHT, reason="a team is trained, and processes are asked: make nightly")
    def test_its_tests_pass_and_its_team_trains_at_once(self, capsys: pytest.CaptureFixture[str], here: Path) -> None:
        run(capsys, "init", "--kind", "environment", "second_of_mine")
        folder = here / "second_of_mine"
        small = ("--training.steps", "2", "--rollout.tasks_per_step", "2")
        assert "trained 2 steps" in in_the_folder(folder, "marft", "train", "recipe.toml", *small)
        assert "3 passed" in in_the_folder(folder, "pytest", "-p", "no:cacheprovider")
        assert "all passed" in in_the_folder(folder, "marft", "check-env", "recipe.toml", "--max-blocking-ms", "200")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("json",), "a package json is installed already; name another folder, such as my_json"),
            (("class",), "'class' cannot be the name of a package"),
            (("src",), "'src' cannot be the name of a package"),
            (("mine", "--data", "t.csv"), "are for a team: leave out --kind environment"),
            (("mine", "--task", "Add."), "are for a team: leave out --kind environment"),
        ],
    )
    def test_is_refused_before_anything_is_written(
        self, capsys: pytest.CaptureFixture[str], here: Path, words: tuple[str, ...], message: str
    ) -> None:
        assert message in run(capsys, "init", "--kind", "environment", *words, status=2)
        assert not list(here.iterdir())

    def test_takes_nobodys_place(self, capsys: pytest.CaptureFixture[str], here: Path) -> None:
        (here / "mine_too").mkdir()
        (here / "mine_too" / "README.md").write_text("mine")
        assert "has README.md already, which stays" in run(
            capsys, "init", "--kind", "environment", "mine_too", status=2
        )
        assert (here / "mine_too" / "README.md").read_text() == "mine"

    def test_the_help_names_every_kind(self) -> None:
        names, _ = named_in_help("kind")
        assert names == [TEAM_KIND, *plugin_names("starters")]

    def test_another_kind_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "unknown 'enviroment'; did you mean 'environment'?" in run(
            capsys, "init", "--kind", "enviroment", status=2
        )


def named_in_help(option: str) -> tuple[list[str], str]:
    """What the help of an option of ``init`` names, and the default that it says, "" for none."""
    command = typer.main.get_command(app).commands["init"]  # type: ignore[attr-defined]
    (said,) = [parameter.help for parameter in command.params if parameter.name == option]
    found = re.fullmatch(r"[^:]+: ([\w, -]+?)(?: \(default: ([\w-]+)\))?\.", said)
    assert found
    return re.split(r", | or ", found[1]), found[2] or ""


def test_the_help_names_every_team_and_the_first_as_the_default() -> None:
    names, default = named_in_help("team")
    assert (names, default) == (list(TEAM_TEMPLATES), next(iter(TEAM_TEMPLATES)))


class TestWhatItRefuses:
    def test_nothing_that_is_there_is_overwritten(self, capsys: pytest.CaptureFixture[str], here: Path) -> None:
        (here / "reward.py").write_text("mine")
        (here / "README.md").symlink_to(here / "nowhere")
        said = run(capsys, "init", ".", status=2)
        assert "has README.md, reward.py already, which stays; name another folder" in said.replace(
            "reward.py, README.md", "README.md, reward.py"
        )
        assert sorted(path.name for path in here.iterdir()) == ["README.md", "reward.py"]
        assert (here / "reward.py").read_text() == "mine"

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("--data", "nowhere.csv"), "nowhere.csv"),
            (("--data", "t.csv", "--question", "countri"), "--question: t.csv has no column 'countri'; did you mean 'country'?"),
            (("--data", "t.csv", "--question", "capital", "--answer", "capital"), "the same column, 'capital'"),
            (("--data", "empty.csv", "--answer", "answer"), "column 'answer' is empty in every row"),
            (("--data", "one.csv"), "one.csv has too few different questions"),
            (("--data", "only.csv", "--question", "answer", "--answer", "answer"), "the same column, 'answer'"),
            (("--model", "./nowhere"), "--model: there is no folder ./nowhere; a Hugging Face id looks like"),
            (("--team", "singel"), "--team: no shape is called 'singel'; did you mean 'single'?"),
            (("--task", "Name the capital."), "--task describes a table of your own; name the table (--data)"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_used_is_named_and_nothing_is_written(
        self, capsys: pytest.CaptureFixture[str], here: Path, words: tuple[str, ...], message: str
    ) -> None:
        (here / "t.csv").write_text("country,capital\nFrance,Paris\n")
        (here / "one.csv").write_text("question,answer\n" + "France,Paris\n" * 20)
        (here / "only.csv").write_text("question,answer\nFrance,Paris\nSpain,Madrid\n")
        (here / "empty.csv").write_text("question,answer\nFrance,\n")
        assert message in run(capsys, "init", "mine", *words, status=2)
        assert not (here / "mine").exists()


def write_towns(folder: Path, rows: int) -> None:
    (folder / "towns.csv").write_text("country,capital\n" + "".join(f"c{n},t{n}\n" for n in range(rows)))


class TestTheTask:
    """Agents that read only a question do not know what to do with it."""

    def test_is_in_every_prompt(self, capsys: pytest.CaptureFixture[str], here: Path) -> None:
        write_towns(here, 200)
        said = run(
            capsys, "init", "mine", "--data", "towns.csv", "--task", "Name the capital.", "--model", "some/model"
        )
        recipe = load_recipe(here / "mine" / "recipe.toml", ["--environment.grading", "exact"])
        assert read_tasks(recipe.environment, "test")[0].prompt.startswith("Name the capital.\n\nc")
        assert "(--task)" not in said

    def test_is_asked_for_where_it_is_missing(self, capsys: pytest.CaptureFixture[str], here: Path) -> None:
        write_towns(here, 200)
        said = run(capsys, "init", "mine", "--data", "towns.csv", "--yes")
        assert "The agents read only the column 'country'. State the task in one sentence (--task)." in said

    def test_of_sums_is_known(self, capsys: pytest.CaptureFixture[str], here: Path) -> None:
        assert "(--task)" not in run(capsys, "init", "mine")


class TestTheSplits:
    @pytest.mark.parametrize(("rows", "task"), [(20, ""), (200, ""), (200, "Name the capital.")])
    def test_have_the_sizes_that_the_recipe_gives_them(
        self, capsys: pytest.CaptureFixture[str], here: Path, rows: int, task: str
    ) -> None:
        write_towns(here, rows)
        said = run(capsys, "init", "mine", "--data", "towns.csv", "--task", task)
        environment = load_recipe(here / "mine" / "recipe.toml", ["--environment.grading", "exact"]).environment
        sizes = {split: len(environment.tasks(split)) for split in ("train", "validation", "test")}
        assert "Splits: " + ", ".join(f"{size} {split}" for split, size in sizes.items()) + "." in said
        assert (f"Only {sizes['test']} held-out test rows" in said) == (sizes["test"] < 20)

    def test_of_generated_rows_are_not_warned_about(self, capsys: pytest.CaptureFixture[str], here: Path) -> None:
        said = run(capsys, "init", "mine")
        assert "60 rows. Splits: 43 train, 3 validation, 14 test." in said
        assert "held-out test rows" not in said


def test_the_readme_obeys_no_name(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "a\x1b[2J.csv").write_text("question,answer\n" + "".join(f"q {n},a\n" for n in range(20)))
    run(capsys, "init", "mine", "--data", "a\x1b[2J.csv")
    assert "\x1b" not in (here / "mine" / "README.md").read_text()
    assert read_tasks(
        load_recipe(here / "mine" / "recipe.toml", ["--environment.grading", "exact"]).environment, "train"
    )


class Typed(io.StringIO):
    """Somebody at a terminal."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_it_asks_for_what_no_option_says(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "t.csv").write_text("id,asked,right\n" + "".join(f"{n},q{n},a{n}\n" for n in range(20)))
    monkeypatch.setattr(sys, "stdin", Typed("t.csv\nasked\nright\nName the town of {each}.\n\nsingle\n"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    said = run(capsys, "init", "mine")
    assert "Path of your table" in said
    assert "questions 'asked', answers 'right'" in said
    written = (here / "mine" / "recipe.toml").read_text()
    prompts = [
        task.prompt
        for task in read_tasks(
            load_recipe(here / "mine" / "recipe.toml", ["--environment.grading", "exact"]).environment, "train"
        )
    ]
    assert all(prompt.startswith("Name the town of {each}.\n\nq") for prompt in prompts)
    assert "Task: Name the town of {each}." in (here / "mine" / "README.md").read_text()
    assert 'path = "tiny"' in written
    assert 'role = "solver"' in written


def test_on_a_terminal_what_cannot_be_used_is_asked_again(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelled path once ended the conversation."""
    monkeypatch.setattr(sys, "stdin", Typed("nowhere.csv\n\n./nowhere\ntiny\n\n"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    said = run(capsys, "init", "mine")
    assert "nowhere.csv: No such file" in said
    assert "there is no folder ./nowhere" in said
    assert "(reasoner-actor)" in said  # what no answer means
    assert "wrote README.md, data.csv" in said


def test_on_a_terminal_a_folder_that_is_taken_is_refused_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "recipe.toml").write_text("")
    monkeypatch.setattr(sys, "stdin", Typed(""))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    said = run(capsys, "init", ".", status=2)
    assert "recipe.toml already" in said
    assert "Path of your table" not in said


def test_a_team_of_this_folder_needs_no_change_of_it(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert "cd " not in run(capsys, "init", ".", "--yes")


def test_a_yes_asks_nothing(capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Typed(""))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert "wrote README.md, data.csv" in run(capsys, "init", "--yes")
    assert (here / "my_team" / "recipe.toml").exists()


def test_columns_are_known_by_their_names_in_any_order() -> None:
    assert guess_columns(["Answer", "Question"]) == ("Question", "Answer")
    assert guess_columns(["a", "b", "c"]) == ("a", "c")


def test_the_invented_rows_are_always_the_same() -> None:
    assert generate_sums() == generate_sums()
    assert len(set(generate_sums().splitlines())) == 61
