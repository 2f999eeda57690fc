"""MARFT from Python: the commands as functions, and functions in the place of import paths."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import marft
from marft.config import parse_recipe, to_toml
from marft.rewards.terms import Function, Outcome
from marft.runs.run_folder import RunFolder
from tests.helpers import recipe
from tests.marft.cli.test_cli import run as command
from tests.nights import BY_NIGHT
from tests.plugins import Flaky
from tests.sources import source

NOTEBOOK = source("marft/examples/first_team.ipynb")


def as_in_a_notebook(code: str, name: str) -> Any:
    """What a cell defines: it lies in no module that anybody could import."""
    space: dict[str, Any] = {"__name__": "__main__", "marft": marft}
    exec(code, space)
    return space[name]


BREVITY = "def brevity(episode): return -0.01 * len(episode.actions)"
BOARD = """
class Board(marft.Environment):
    size: int = 3

    def tasks(self, split):
        return [marft.Task(f"{split}/{n}", f"word {n}") for n in range(self.size)]

    def start(self, task, seed):
        return Turn(task)

class Turn:
    def __init__(self, task): self.task = task
    async def reset(self): return marft.Observation(self.task.prompt)
    async def step(self, actions): return marft.Step(marft.Observation(""), 1.0, terminated=True, success=True)
    async def close(self): ...
"""


@pytest.fixture
def brevity() -> Any:
    return as_in_a_notebook(BREVITY, "brevity")


@pytest.fixture
def board() -> Any:
    return as_in_a_notebook(BOARD, "Board")


class Watching(marft.Callback):
    def __init__(self, until: int = 99) -> None:
        self.until, self.heard = until, []  # type: ignore[var-annotated]

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        self.heard.append(step)

    def wants_stop(self) -> bool:
        return bool(self.heard) and self.heard[-1] >= self.until


class TestImporting:
    def test_it_is_fast_and_loads_nothing_heavy(self) -> None:
        code = (
            "import sys, time; began = time.perf_counter(); import marft; took = time.perf_counter() - began;"
            "print(took, [name for name in ('torch', 'transformers', 'numpy', 'pydantic', 'rich') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        seconds, loaded = done.stdout.split(maxsplit=1)
        assert float(seconds) < 0.3
        assert loaded.strip() == "[]"

    def test_every_name_that_it_promises_is_there(self) -> None:
        assert set(marft.__all__) <= set(dir(marft))
        assert all(getattr(marft, name) is not None for name in marft.__all__)
        with pytest.raises(AttributeError, match="no attribute 'trian'"):
            marft.trian  # noqa: B018

    def test_help_of_the_command_loads_nothing_heavy(self) -> None:
        code = "import sys; import marft.cli.main; print('torch' in sys.modules, 'pydantic' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["False", "False"]


class TestRecipes:
    def test_changes_are_what_they_are_on_the_command_line(self) -> None:
        words = ["--training.steps", "5", "--agents.actor.sampling.temperature", "0.5", "--algorithm", "grpo"]
        tables = {"training": {"steps": 5}, "agents.actor": {"sampling": {"temperature": 0.5}}, "algorithm": "grpo"}
        assert marft.load_recipe("demo", tables) == marft.load_recipe("demo", words)
        assert marft.load_recipe("demo", **tables) == marft.load_recipe("demo", words)

    def test_a_table_changes_what_it_names_and_one_of_another_name_takes_the_place(self) -> None:
        kept = marft.load_recipe("demo", environment={"params": {"max_terms": 4}})
        assert kept.environment.params == {"min_terms": 3, "max_terms": 4, "min_digits": 2, "max_digits": 2}  # type: ignore[attr-defined]
        other = marft.load_recipe("demo", environment={"name": "tests.plugins:Flaky", "count": 3})
        assert other.environment.model_dump() == {**Flaky(count=3).model_dump(), "name": "tests.plugins:Flaky"}

    def test_tables_are_a_recipe(self, tmp_path: Path) -> None:
        assert marft.load_recipe(recipe()) == parse_recipe({**recipe(), "recipe_folder": str(Path.cwd())})
        unnamed = {key: value for key, value in recipe().items() if key != "name"}
        assert marft.load_recipe(unnamed, output=tmp_path).output == str(tmp_path)
        assert marft.load_recipe(unnamed).name == "run"

    def test_a_recipe_that_was_read_can_be_changed_again(self, board: Any) -> None:
        first = marft.load_recipe(recipe(), environment=board)
        second = marft.load_recipe(first, training={"steps": 9}, environment={"size": 4})
        assert (second.training.steps, second.environment.size) == (9, 4)  # type: ignore[attr-defined]
        assert type(second.environment) is board

    @pytest.mark.parametrize(
        ("source", "changes", "message"),
        [
            ("dmeo", {}, "no recipe at dmeo; did you mean 'demo'?"),
            ("demo", {"training.stesp": 3}, "unknown key 'stesp'; did you mean 'steps'?"),
            ("demo", {"training": {"steps": "3"}}, "training.steps: input should be a valid integer (given: '3')"),
            ("demo", "--training.steps 3", "changes are a table"),
            ({"agents": []}, {}, "recipe:\n  models: is missing"),
        ],
    )
    def test_errors_are_the_commands_sentences(self, source: Any, changes: Any, message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            marft.load_recipe(source, changes)


class TestCallables:
    def test_what_can_be_imported_is_written_down_by_its_import_path(self) -> None:
        read = marft.load_recipe(recipe(), environment=Flaky, rewards=[Outcome])
        assert 'name = "tests.plugins:Flaky"' in to_toml(read)
        assert 'name = "marft.rewards.terms:Function"' in to_toml(marft.load_recipe(
            recipe(), rewards=[{"name": Function, "call": "tests.marft.rewards.test_rewards:broken"}]))  # fmt: skip
        assert not read.python_objects

    def test_what_cannot_is_written_down_by_its_name(self, brevity: Any, board: Any) -> None:
        read = marft.load_recipe(recipe(), environment=board, rewards=brevity, tools={})
        written = to_toml(read)
        assert 'name = "given in Python: Board"' in written
        assert 'call = "given in Python: brevity"' in written
        assert list(read.python_objects.values()) == [board, brevity]

    def test_every_place_of_an_import_path_takes_one(self, brevity: Any) -> None:
        code = "class Mine({base}): ...\n".format
        organization = as_in_a_notebook(f"from tests.plugins import Apart\n{code(base='Apart')}", "Mine")
        credit = as_in_a_notebook(f"from marft.examples.plugins import Median\n{code(base='Median')}", "Mine")
        objective = as_in_a_notebook("from marft.examples.plugins import SPO\nclass Loss(SPO): ...", "Loss")
        look_up = as_in_a_notebook('def look_up(town: str) -> str:\n    """The weather."""\n    return town', "look_up")
        read = marft.load_recipe(recipe(), team=organization, tools={"weather": look_up},
                                 agents={"actor": {"tools": ["weather"]}})  # fmt: skip
        assert type(read.team) is organization
        assert read.tools["weather"].connect().tools[0].name == "look_up"  # type: ignore[attr-defined]
        algorithm = {"credit": credit, "objective": objective(width=0.3), "critic": {"kind": "none"}}
        read = marft.load_recipe(recipe(), {"algorithm.critic.kind": "none"}, algorithm=algorithm)
        assert type(read.algorithm.credit) is credit
        assert (type(read.algorithm.objective), read.algorithm.objective.width) == (objective, 0.3)  # type: ignore[attr-defined]

    def test_a_grading_may_be_a_function_of_the_notebook(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("question,answer\n" + "".join(f"q{n},{n}\n" for n in range(40)))
        longer = as_in_a_notebook("def longer(row, text): return float(len(text) > len(row['answer']))", "longer")
        table = {"name": "table", "path": tmp_path / "t.csv", "grading": longer}
        read = marft.load_recipe(recipe(), environment=table)
        task = read.environment.tasks("train")[0]  # type: ignore[attr-defined]
        assert read.environment.start(task, 0).grade("a long text") == (1.0, None)  # type: ignore[attr-defined]
        wrong = as_in_a_notebook("def longer(text): return 1.0", "longer")
        with pytest.raises(ValueError, match=r"write: def longer\(row, text\)"):
            marft.load_recipe(recipe(), environment={**table, "grading": wrong})

    def test_an_object_stays_itself_with_all_that_it_holds(self) -> None:
        made = as_in_a_notebook(
            "from pydantic import PrivateAttr\n"
            + BOARD.replace("size: int = 3", "size: int = 3\n    _held: object = PrivateAttr()"),
            "Board",
        )(size=5)
        made._held = held = object()
        read = marft.load_recipe(recipe(), environment=made, training={"steps": 3})
        assert read.environment._held is held  # type: ignore[attr-defined]
        assert marft.load_recipe(read, seed=3).environment._held is held  # type: ignore[attr-defined]
        with pytest.raises(
            ValueError, match="Board was given as an object; change its fields there, or give its class"
        ):
            marft.load_recipe(recipe(), {"environment": made, "environment.size": 2})

    def test_other_processes_cannot_be_given_what_no_module_holds(self, brevity: Any) -> None:
        with pytest.raises(ValueError, match=r"rollout\.workers: brevity can be given in Python to one process alone"):
            marft.load_recipe(recipe(), rewards=brevity, rollout={"workers": 2})
        assert marft.load_recipe(recipe(), rewards=Outcome, rollout={"workers": 2}).rollout.workers == 2

    def test_two_things_of_one_name_are_refused(self, brevity: Any) -> None:
        other = as_in_a_notebook(BREVITY, "brevity")
        with pytest.raises(ValueError, match="two different things called 'brevity' are given"):
            marft.load_recipe(recipe(), rewards=[brevity, other])
        assert len(marft.load_recipe(recipe(), rewards=[brevity, brevity]).rewards) == 2

    def test_a_class_in_the_wrong_place_is_refused_as_ever(self, board: Any) -> None:
        with pytest.raises(ValueError, match="is not an organization: no method async def act"):
            marft.load_recipe(recipe(), team=board)


@pytest.fixture(scope="class")
def small(tmp_path_factory: pytest.TempPathFactory) -> marft.Run:
    """A run with an environment and a reward that no module holds."""
    brevity, board = as_in_a_notebook(BREVITY, "brevity"), as_in_a_notebook(BOARD, "Board")
    rewards = [{"name": "outcome"}, brevity]
    return marft.train(recipe(output=tmp_path_factory.mktemp("runs")), environment=board, rewards=rewards)


@pytest.mark.slow
class TestARun:
    @BY_NIGHT
    def test_it_is_recorded_by_names_and_looked_at_with_nothing(self, small: marft.Run) -> None:
        run = marft.load_run(small.path)
        assert repr(run) == f"Run('{small.path}', step 2)"
        assert run.recipe["environment"] == {"name": "given in Python: Board", "size": 3}
        assert run.recipe["rewards"][1]["call"] == "given in Python: brevity"
        assert (run.step, run.steps) == (2, [1, 2])
        assert [row["step"] for row in run.metrics] == [1, 2]
        assert run.metrics[0]["reward"] == pytest.approx(0.98)
        assert [path.name for path in run.checkpoints] == ["step_000001", "step_000002"]
        assert run.checkpoint("last") == run.checkpoints[-1]
        assert sorted(run.adapters()) == ["actor", "reasoner"]
        assert all((path / "adapter_model.safetensors").is_file() for path in run.adapters().values())
        assert "<svg" in run.report().read_text()

    def test_its_recipe_is_complete(self, small: marft.Run) -> None:
        again = marft.load_recipe(small.recipe, given=small.given)
        assert again == small.folder.settings(objects=small.given)

    @pytest.mark.parametrize(
        ("asked", "said"),
        [
            ({"order": "wrost"}, "order: 'wrost' is none of worst, best, failed"),
            ({"count": -1}, "count is a whole number from 0 on, and this is -1"),
            ({"step": "1"}, "step is a whole number"),
            ({"agent": 3}, "agent is a text, and this is 3"),
            ({"task": 3}, "task is a text"),
        ],
    )
    def test_episodes_that_are_asked_for_by_nonsense_are_refused(
        self, asked: dict[str, Any], said: str, small: marft.Run
    ) -> None:
        with pytest.raises(ValueError, match=said):
            small.episodes(**asked)

    def test_a_look_loads_no_model_code(self, small: marft.Run) -> None:
        code = (
            f"import sys, marft; run = marft.load_run({str(small.path)!r}); run.metrics, run.recipe, run.episodes(),"
            "run.checkpoints; print('torch' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "False"

    def test_its_episodes_are_found_by_step_task_agent_and_worth(self, small: marft.Run) -> None:
        everything = small.episodes()
        assert {type(episode) for episode in everything} == {marft.Episode}
        assert len(everything) == 4
        assert len(small.episodes(1, count=3)) == 3
        task = everything[0].task.id
        assert {episode.task.id for episode in small.episodes(task=task)} == {task}
        assert len(small.episodes(task=f"{task}#1")) == 1
        assert {a.agent for episode in small.episodes(agent="actor") for a in episode.actions} == {"actor"}
        worst = [episode.total_reward for episode in small.episodes(order="worst")]
        assert worst == sorted(worst)
        assert small.episodes(order="failed") == []
        with pytest.raises(ValueError, match="order: 'wrst' is none of worst, best, failed"):
            small.episodes(order="wrst")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="nobody called 'actr' acted here; did you mean 'actor'"):
            small.episodes(agent="actr")
        with pytest.raises(ValueError, match="recorded no episodes of step 7; there are: 1, 2"):
            small.episodes(7)

    @pytest.mark.parametrize("opened", [lambda run: run.evaluate(tasks=1), lambda run: marft.train(run, resume=True)])
    def test_without_what_was_given_it_says_what_to_give(self, small: marft.Run, opened: Any) -> None:
        with pytest.raises(ValueError, match="given in Python and lies in no file") as error:
            opened(marft.load_run(small.path))
        assert "Board (environment)" in str(error.value)
        assert "brevity (rewards.1.call)" in str(error.value)
        assert "given=[Board, brevity]" in str(error.value) or "given=[brevity, Board]" in str(error.value)
        assert "that in its place: my_module:" in str(error.value)

    @BY_NIGHT
    def test_commands_show_it_and_say_why_they_cannot_evaluate_it(
        self, small: marft.Run, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert "step 2: 1 of 4 episodes" in command(capsys, "show", str(small.path), "--count", "1")
        assert "wrote" in command(capsys, "report", str(small.path))
        said = command(capsys, "eval", str(small.path), status=2)
        assert "given in Python and lies in no file" in said
        assert "copy that to" not in said

    def test_with_it_the_run_is_evaluated_and_goes_on(self, small: marft.Run, board: Any, brevity: Any) -> None:
        run = marft.load_run(small.path, given=[board, brevity])
        results = run.evaluate(tasks=2, modes=["greedy"])
        assert [(result.checkpoint, result.accuracy) for result in results] == [("base", 1.0), ("step_000002", 1.0)]
        assert [row["checkpoint"] for row in run.evaluations] == ["base", "step_000002"]
        assert marft.train(run, resume=True, training={"steps": 3}).step == 3
        assert small.evaluate(tasks=1, modes=["greedy"], checkpoints=["base"])[0].checkpoint == "base"


class TestTraining:
    @pytest.mark.slow
    def test_an_observer_hears_each_step_and_stops_the_run(self, tmp_path: Path) -> None:
        watching = Watching(until=1)
        run = marft.train(recipe(output=tmp_path), callbacks=[watching])
        assert watching.heard == [1]
        assert (run.step, run.checkpoint().name) == (1, "step_000001")

    @BY_NIGHT
    @pytest.mark.slow
    def test_what_nobody_listens_to_is_a_warning(self, tmp_path: Path) -> None:
        marft.train(recipe(output=tmp_path))
        checkpoint = RunFolder(tmp_path / "test").checkpoints / "step_000002" / "state.json"
        checkpoint.write_text("{")
        with pytest.warns(UserWarning, match="passed over a checkpoint"):
            marft.train(tmp_path / "test", resume=True)

    @BY_NIGHT
    @pytest.mark.slow
    def test_it_writes_what_the_command_writes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "test.toml").write_text(to_toml(marft.load_recipe(recipe(output=tmp_path / "a"))))
        command(capsys, "train", str(tmp_path / "test.toml"))
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            marft.train(tmp_path / "test.toml", output=tmp_path / "b")
        files = [
            {str(path.relative_to(tmp_path / name / "test")) for path in (tmp_path / name / "test").rglob("*")
             if "tfevents" not in path.name}
            for name in ("a", "b")
        ]  # fmt: skip
        assert files[0] == files[1]
        rows = [[row["reward"] for row in RunFolder(tmp_path / name / "test").read_metrics()] for name in ("a", "b")]
        assert rows[0] == rows[1]

    @pytest.mark.slow
    def test_a_folder_in_use_is_left_alone(self, tmp_path: Path) -> None:
        marft.train(recipe(output=tmp_path), training={"steps": 1})
        with pytest.raises(ValueError, match=r"holds a run already; go on with it \(--resume\)"):
            marft.train(recipe(output=tmp_path))
        with pytest.raises(ValueError, match="a run keeps its name and its place"):
            marft.train(tmp_path / "test", resume=True, name="other")

    def test_what_the_system_says_about_files_is_a_sentence(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(marft.RunError, match="a file is where a folder should be; move it"):
            marft.train(recipe(output=tmp_path / "file"))

    def test_one_mode_or_checkpoint_needs_no_list(self, tmp_path: Path) -> None:
        """A text is a sequence of letters too, and each was once evaluated."""
        (result,) = marft.evaluate(recipe(output=tmp_path), tasks=1, modes="greedy", checkpoints="base")
        assert result.mode == "greedy"
        assert len(repr(result)) < 400
        with pytest.raises(ValueError, match="modes: 'greed' is none of greedy, sampled"):
            marft.evaluate(recipe(output=tmp_path), tasks=1, modes=["greed"])  # type: ignore[list-item]

    def test_a_recipe_alone_is_evaluated_with_its_base(self, tmp_path: Path) -> None:
        (result,) = marft.evaluate(recipe(output=tmp_path), tasks=2, modes=["greedy"])
        assert (result.checkpoint, result.tasks) == ("base", 2)
        assert not (tmp_path / "test").exists()


def run_in(folder: Path, code: str) -> str:
    """Run code in a process of its own and an empty folder → what it printed."""
    (folder / "snippets.py").write_text(code, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "snippets.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "nightly", reason="a third of a minute: make nightly")
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    printed = run_in(tmp_path, "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
    assert "step 4" in printed
    assert all(not cell.get("outputs") for cell in cells)
