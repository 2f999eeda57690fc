"""The command: what it prints, what it refuses, how it stops."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer

from marft import __version__
from marft.cli.app import HELP_GROUPS, OTHER_GROUP
from marft.cli.handlers import progress_bar
from marft.cli.main import app, main
from marft.config import RunSettings, to_toml
from marft.config.algorithms import PRESETS
from marft.config.bundled import resolve_path
from marft.runs.run_folder import RunFolder
from tests.helpers import settings
from tests.nights import BY_NIGHT
from tests.sources import ROOT


def run(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """Run ``marft`` in this process → stdout and stderr together, spaces squeezed."""
    before = sys.argv
    sys.argv = ["marft", *arguments]
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    captured = capsys.readouterr()
    assert ended.value.code == status, captured.out + captured.err
    return re.sub(r"\s+", " ", captured.out + captured.err).strip()


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml(settings("tiny", tmp_path)))
    return path


@pytest.mark.slow
def test_train_eval_compare_and_report_work_together(
    capsys: pytest.CaptureFixture[str], recipe_file: Path, tmp_path: Path
) -> None:
    text = run(capsys, "train", str(recipe_file), "--training.steps", "2", "--verbose")
    assert "step 1/2 " in text
    assert "step 2/2 " in text
    assert re.search(r"reasoner length \d", text)
    assert "trained 2 steps" in text
    folder = tmp_path / "test"
    text = run(capsys, "eval", str(folder), "--tasks", "6", "--shuffle-messages")
    assert "Greedy:" in text
    assert "effect of messages" in text
    for heading in ("base", "step_000002", "shuffled", "tasks 6"):
        assert heading in text
    evaluation = json.loads((folder / "evaluations" / "base-greedy.json").read_text())
    assert (evaluation["checkpoint"], evaluation["mode"], evaluation["tasks"]) == ("base", "greedy", 6)
    assert len(evaluation["interval"]) == 2
    assert set(evaluation["agents"]) == {"reasoner", "actor"}
    assert len(list((folder / "evaluations").glob("*.json"))) == 8
    assert len(list((folder / "evaluations").glob("*.parquet"))) == 8
    assert "step_000002 greedy" in run(capsys, "compare", str(folder))
    assert "wrote" in run(capsys, "report", str(folder), "--against", str(folder))
    assert "<svg" in (folder / "report.html").read_text()


@BY_NIGHT
@pytest.mark.slow
def test_a_checkpoint_of_two_names_is_evaluated_once(
    capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
) -> None:
    """It once was evaluated for each of its names, and shown in two rows that looked alike."""
    names = "base, last,step_000002,base"
    text = run(capsys, "eval", str(mine[1].path), "--tasks", "2", "--mode", "greedy", "--checkpoint", names)
    assert "last and step_000002 are one checkpoint, step_000002: it is evaluated once" in text
    assert text.count("base step_000002 greedy greedy") == 1  # one column each


def test_a_bar_writes_nothing_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar("playing") as advance:
        advance(2)
        advance()
    assert capfd.readouterr() == ("", "")


def test_a_recipe_alone_can_be_evaluated(capsys: pytest.CaptureFixture[str], recipe_file: Path) -> None:
    text = run(capsys, "eval", str(recipe_file), "--tasks", "4", "--mode", "sampled")
    assert "base sampled tasks 4" in text
    assert "the team of this recipe, untrained, solves" in text


def test_a_dry_run_prints_the_whole_recipe_and_runs_nothing(
    capsys: pytest.CaptureFixture[str], recipe_file: Path, tmp_path: Path
) -> None:
    text = run(capsys, "train", str(recipe_file), "--dry-run", "--algorithm.level", "token")
    assert 'level = "token"' in text
    assert "lambda_critic" in text
    assert not (tmp_path / "test").exists()


def test_a_dry_run_says_how_models_are_spoken_to_and_reads_no_weights(
    capsys: pytest.CaptureFixture[str], recipe_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(resolve_path("tiny"), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    given = (
        "train",
        str(recipe_file),
        "--dry-run",
        "--models.base.path",
        str(folder),
        "--models.base.context_length",
        "300",
    )
    said = run(capsys, *given)
    assert "# models.base: 300 tokens for prompt and action together; a turn ends with <|im_end|>" in said
    (folder / "chat_template.jinja").unlink()
    assert "has no chat template" in run(capsys, *given, status=2)


def test_a_dry_run_reads_the_environments_tasks(
    capsys: pytest.CaptureFixture[str], recipe_file: Path, tmp_path: Path
) -> None:
    text = run(capsys, "train", str(recipe_file), "--dry-run")
    assert " # train: 64 tasks, the first is chain_sum/1: State the final answer" in text
    assert "# test: 16 tasks" in text
    data = tmp_path / "problems.jsonl"
    data.write_text('{"problem": "What is 1 + 1?", "answer": "2"}\n{"problem": 3')
    given = ("train", str(recipe_file), "--dry-run", "--environment", f"{{ name = 'math', path = '{data}' }}")
    assert "problems.jsonl, line 2 is not JSON" in run(capsys, *given, status=2)
    data.write_text("")
    assert "problems.jsonl holds no rows" in run(capsys, *given, status=2)
    twice = "{ name = 'tests.plugins:Flaky', count = 0 }"
    assert "training split has no tasks" in run(
        capsys, "train", str(recipe_file), "--dry-run", "--environment", twice, status=2
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "nowhere.toml"), "no recipe at nowhere.toml"),
        (("train", "RECIPE", "--training.stesp", "3"), "unknown key 'stesp'; did you mean 'steps'?"),
        (("train", "RECIPE", "--models.base.path", "/nowhere"), "cannot load '/nowhere'"),
        (("train", "RECIPE", "--device", "cuda:7"), "cannot use 'cuda:7' here"),
        (("train", "RECIPE", "--resume"), "no run at"),
        (("train", "RECIPE", "--init-from", "/nowhere"), "/nowhere"),
        (("eval", "RECIPE", "--mode", "guessing"), "'guessing' is none of greedy, sampled"),
        (("compare", "/nowhere"), "no run at /nowhere"),
        (("report", "/nowhere"), "no run at /nowhere"),
        (("train", "dmeo"), "no recipe at dmeo; did you mean 'demo'?"),
        (("train", "RECIPE", "--resum"), "no option is called '--resum'; did you mean '--resume'?"),
        (("train", "--resum", "RECIPE"), "no option is called '--resum'; did you mean '--resume'?"),
        (("train", "RECIPE", "--overwite", "--seed", "3"), "did you mean '--overwrite'?"),
        (("train", "RECIPE", "--debgu", "3"), "did you mean '--debug'?"),
        (("eval", "RECIPE", "--checkpont=last"), "no option is called '--checkpont'; did you mean '--checkpoint'?"),
        (("play", "RECIPE", "--humen", "actor"), "did you mean '--human'?"),
        (("train", "RECIPE", "--outptu", "x"), "unknown key 'outptu'; did you mean 'output'?"),
        (("train", "--seed", "3", "RECIPE"), "the recipe or run comes first, and --seed behind it"),
    ],
)
def test_mistakes_are_one_message_and_status_2(
    capsys: pytest.CaptureFixture[str], recipe_file: Path, arguments: tuple[str, ...], message: str
) -> None:
    given = [str(recipe_file) if word == "RECIPE" else word for word in arguments]
    text = run(capsys, *given, status=2)
    assert message in text
    assert text.startswith("marft: ")
    assert "Traceback" not in text


@pytest.mark.parametrize("named", ["first", "runs", ".", "runs/frist"])
def test_a_run_that_is_near_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    RunFolder.create(settings("tiny", Path("runs"), "--name", "first"))
    assert f"no run at {named}: it has no config.toml; did you mean 'runs/first'?" in run(
        capsys, "show", named, status=2
    )
    assert "did you mean the run 'runs/first'?" in run(capsys, "eval", "first", status=2)


def test_algorithms_are_listed_and_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    table = run(capsys, "algorithms")
    assert all(name in table for name in PRESETS)
    one = run(capsys, "algorithms", "grpo")
    assert 'name = "grpo"' in one
    assert "coefficient = 0.04 # Shao et al. 2024, §4.2" in one
    assert "minibatches = 2 #" not in one  # ours
    assert "did you mean 'grpo'?" in run(capsys, "algorithms", "grop", status=2)


def test_a_run_is_not_overwritten_unless_told(
    capsys: pytest.CaptureFixture[str], recipe_file: Path, tmp_path: Path
) -> None:
    RunFolder.create(settings("tiny", tmp_path)).metrics_path.write_text('{"step": 1}\n')
    assert "holds a run already" in run(capsys, "train", str(recipe_file), status=2)


def test_checkpoints_that_are_not_there_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    RunFolder.create(settings("tiny", tmp_path))
    assert "no checkpoint 'last'" in run(capsys, "eval", str(tmp_path / "test"), status=2)


@BY_NIGHT
@pytest.mark.slow
def test_parts_are_imported_from_the_folder_that_the_command_runs_in(recipe_file: Path, tmp_path: Path) -> None:
    (tmp_path / "my_parts.py").write_text(
        "from marft.envs.reasoning_gym import ReasoningGym\nclass Mine(ReasoningGym):\n    pass\n", encoding="utf-8"
    )
    command = [str(Path(sys.executable).parent / "marft"), "train", str(recipe_file), "--dry-run"]
    command += ["--environment", "{ name = 'my_parts:Mine', dataset = 'chain_sum' }"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "my_parts:Mine" in done.stdout


COMMANDS = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_help_is_quick_and_names_every_command() -> None:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "marft", "--help"], capture_output=True, text=True, check=True
    )
    assert time.perf_counter() - began < 5  # far below half a second; a slow machine must not fail the test
    assert not {"pydantic", "numpy", "torch"} & set(re.findall(r"\| +(\w+)", done.stderr))
    assert all(f"\n  {command} " in done.stdout for command in COMMANDS)
    assert done.stdout.startswith("Usage: marft ")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_is_whole_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["marft", *command.split(), "--help"])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert not re.search(r"^  [a-z-]+ {2,}.*\.\.\.$", shown, re.MULTILINE)  # no description is cut short


def test_help_groups_the_commands() -> None:
    done = subprocess.run([sys.executable, "-m", "marft", "--help"], capture_output=True, text=True, check=True)
    blocks = dict(re.findall(r"^(\w+):\n((?:  .+\n)+)", done.stdout, re.MULTILINE))
    groups = {title: re.findall(r"^  ([a-z-]+) ", lines, re.MULTILINE) for title, lines in blocks.items()}
    assert list(groups) == [title for title in ("Options", *HELP_GROUPS, OTHER_GROUP) if title in groups]
    assert groups["Start"] == ["init", "recipes", "algorithms", "environments"]
    assert groups["Train"][:2] == ["train", "engine"]
    assert groups["Evaluate"][:3] == ["eval", "compare", "scenarios"]
    assert groups["Look"][:4] == ["show", "graph", "report", "play"]
    assert groups["Ship"][:2] == ["export", "push"]


@pytest.mark.slow
def test_warnings_about_the_syntax_of_installed_packages_are_hidden_and_ones_own_are_shown(tmp_path: Path) -> None:
    packages, mine = tmp_path / "site-packages", tmp_path / "mine"
    for folder, name in ((packages, "their_module"), (mine, "my_module")):
        folder.mkdir()
        (folder / f"{name}.py").write_text("VALUE = 1 if 3 is 3 else 0\n")
    (mine / "my_parts.py").write_text(
        "import my_module, their_module\nfrom marft.envs.reasoning_gym import ReasoningGym\nclass Mine(ReasoningGym): ...\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(packages),
        "PYTHONPYCACHEPREFIX": str(tmp_path / "compiled"),
        "PYTHONWARNINGS": "",
    }
    command = [sys.executable, "-m", "marft", "train", "demo", "--dry-run"]
    command += ["--environment.name", "my_parts:Mine"]
    done = subprocess.run(command, cwd=mine, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "my_module.py" in done.stderr
    assert done.stderr.count("SyntaxWarning") == 1, done.stderr


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == f"marft {__version__}"


def test_a_shell_completes_commands() -> None:
    words = {"_MARFT_COMPLETE": "complete_bash", "COMP_WORDS": "marft envi", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "marft"], capture_output=True, text=True, check=True, env={**os.environ, **words}
    )
    assert done.stdout.split() == ["environments"]
    assert "--install-completion" in subprocess.run(
        [sys.executable, "-m", "marft", "--help"], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("presses", [1, 2] if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else [1])
def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(recipe_file: Path, tmp_path: Path, presses: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "marft.cli.main", "train", str(recipe_file), "--training.steps", "5000", "--checkpoints.every", "1000",
         "--rollout.tasks_per_step", str(200 if presses == 2 else 2)],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    folder = RunFolder(tmp_path / "test")
    deadline = time.monotonic() + 60
    while not folder.read_metrics() and time.monotonic() < deadline:
        time.sleep(0.02)
    for _ in range(presses):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5 * (presses - 1))
    output = re.sub(r"\s+", " ", process.communicate(timeout=60)[0])
    if presses == 1:
        assert process.returncode == 130, output  # so that what stands behind && does not begin
        done = len(folder.read_metrics())
        assert f"stopped after step {done}. Go on with: marft train" in output
        assert "--resume" in output
        assert (folder.checkpoints / f"step_{done:06d}" / "state.json").exists()
    else:
        assert process.returncode == 130, output
        assert "Traceback" not in output
        assert "stopped after step" not in output
        assert "nobody waits for" not in output  # nothing was given up on that had been waiting for ever


@pytest.mark.parametrize("words", [("eval", "--tasks", "-3"), ("graph", "--step", "-1")])
def test_counts_below_zero_are_refused(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    """Minus three tasks were once all but three."""
    assert "greater than or equal to 0" in run(capsys, words[0], "runs/none", *words[1:], status=2)
