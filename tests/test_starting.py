"""How runs start, go on and end: what is refused, what is deleted, who may, and what damage is said."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from marft import training
from marft.config import RunSettings, load_recipe, parse_recipe, to_toml
from marft.errors import RunError
from marft.evaluation.report import write_report
from marft.learning.learner import Learner
from marft.learning.optimizers import optimizer_tensors
from marft.learning.undoing import MOST_IN_A_ROW, Before, not_finite
from marft.models.pool import Models
from marft.runs import lock
from marft.runs.changes import changes
from marft.runs.checkpoints import Checkpoints, Record, State, read_record, restore, verify
from marft.runs.folder import RunFolder
from marft.runs.log import Log, Mark, read_rows, rewind
from marft.runs.removing import written_by_a_run
from marft.stage import Stage
from marft.training import Silent, train
from tests.helpers import recipe, settings
from tests.test_cli import run as command

ROOT = Path(__file__).parents[1]


class Listening(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def finished(output: Path, *overrides: str) -> tuple[RunSettings, RunFolder]:
    """A run of two steps, with a checkpoint of each."""
    run = settings("tiny", output, *overrides)
    folder = RunFolder.create(run)
    train(run, folder)
    return run, folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished(tmp_path_factory.mktemp("trained"))[1]


@pytest.fixture
def mine(trained: RunFolder, tmp_path: Path) -> tuple[RunSettings, RunFolder]:
    """A copy of a trained run, to damage."""
    run = settings("tiny", tmp_path)
    subprocess.run(["cp", "-r", str(trained.path), str(tmp_path / "test")], check=True)
    folder = RunFolder(tmp_path / "test")
    folder.write_config(run)
    return run, folder


def read_record_of(path: Path, changed: str) -> Record:
    """The record of a checkpoint whose file was changed by somebody who knows how its digests are made."""
    table = json.loads((path / "state.json").read_text())
    table["files"][changed] = hashlib.sha256((path / changed).read_bytes()).hexdigest()
    del table["digest"]
    table["digest"] = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
    (path / "state.json").write_text(json.dumps(table))
    return read_record(path)


class TestOverwriting:
    def test_a_folder_that_is_no_run_is_left_alone(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        """``--overwrite`` once deleted whatever had the run's name."""
        (tmp_path / "recipe.toml").write_text(to_toml(settings("tiny", tmp_path)))
        papers = tmp_path / "test"
        (papers / "checkpoints").mkdir(parents=True)
        (papers / "thesis.tex").write_text("years of work")
        (papers / "config.toml").write_text("name = 'something else'")
        before = contents(papers)
        text = command(capsys, "train", str(tmp_path / "recipe.toml"), "--overwrite", status=2)
        assert "is no run of MARFT's" in text
        assert "config.toml is there" in text
        assert contents(papers) == before

    @pytest.mark.parametrize("mark", ["", "{}", "[]", '{"format": "mine"}', "\xff"])
    def test_a_run_is_known_by_what_its_mark_says(self, tmp_path: Path, mark: str) -> None:
        run = settings("tiny", tmp_path)
        (tmp_path / "test").mkdir()
        (tmp_path / "test" / "run.json").write_text(mark, encoding="latin-1")
        with pytest.raises(ValueError, match="no mark of one"):
            RunFolder(tmp_path / "test").check_free(overwrite=True)
        with pytest.raises(ValueError, match="no mark of one"):
            train(run, RunFolder(tmp_path / "test"), overwrite=True)
        assert [path.name for path in (tmp_path / "test").iterdir()] == ["run.json"]

    def test_only_what_the_run_wrote_goes(self, mine: tuple[RunSettings, RunFolder]) -> None:
        run, folder = mine
        foreign = ["notes.txt", "checkpoints/mine/model.safetensors", "episodes/step.parquet", "evaluations/summary.json",
                   "tensorboard/notes"]  # fmt: skip
        for name in foreign:
            (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
            (folder.path / name).write_text("theirs")
        observer = Listening()
        state = train(run.model_copy(update={"seed": 5}), folder, overwrite=True, observer=observer)
        assert state.step == 2
        assert load_recipe(folder.config).seed == 5
        assert all((folder.path / name).read_text() == "theirs" for name in foreign)
        (note,) = observer.notes
        assert all(name in note for name in foreign)

    def test_what_lies_among_checkpoints_is_to_be_moved_first(self, mine: tuple[RunSettings, RunFolder]) -> None:
        run, folder = mine
        outside = folder.path.parent / "outside"
        outside.mkdir()
        (outside / "critic.safetensors").write_text("theirs")
        for place, name in ((folder.checkpoints / "step_000002", "plot.png"), (folder.checkpoints, "step_000009")):
            (place / name).symlink_to(outside)
            before = contents(folder.path)
            with pytest.raises(ValueError, match=f"{name} lies among the checkpoints"):
                train(run, folder, overwrite=True)
            assert contents(folder.path).keys() == before.keys()
            (place / name).unlink()
        (folder.checkpoints / "step_000001" / "notes.txt").write_text("theirs")
        four = settings("tiny", folder.path.parent, "--training.steps", "4", "--checkpoints.keep_best", "false")
        train(four, folder, resume=True)  # which lets go of the first checkpoint
        assert (folder.checkpoints / "step_000001" / "notes.txt").read_text() == "theirs"
        assert list((folder.checkpoints / "step_000001").iterdir()) == [
            folder.checkpoints / "step_000001" / "notes.txt"
        ]

    def test_nothing_of_a_run_is_left(self, mine: tuple[RunSettings, RunFolder]) -> None:
        run, folder = mine
        (folder.checkpoints / ".unfinished-x" / "policies").mkdir(parents=True)
        assert {"run.json", "config.toml", "metrics.jsonl"} <= {p.name for p in written_by_a_run(folder.path)}
        before = {path for path in folder.path.rglob("*") if path.is_file()}
        assert before - set(written_by_a_run(folder.path)) == {folder.path / "run.lock"}
        assert folder.begin(run, overwrite=True) == []
        assert sorted(p.name for p in folder.path.iterdir()) == ["config.toml", "run.json", "run.lock"]

    def test_the_old_run_stays_until_the_new_one_can_start(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
    ) -> None:
        run, folder = mine
        before = contents(folder.path)
        (folder.path.parent / "recipe.toml").write_text(to_toml(run))
        recipe_file = str(folder.path.parent / "recipe.toml")
        command(capsys, "train", recipe_file, "--overwrite", "--models.base.path", "/nowhere", status=2)
        assert contents(folder.path) == before
        assert "trained 1 steps" in command(capsys, "train", recipe_file, "--overwrite", "--training.steps", "1")
        assert len(folder.read_metrics()) == 1

    def test_a_run_can_be_started_over_from_its_own_folder(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
    ) -> None:
        _, folder = mine
        assert "holds a run already" in command(capsys, "train", str(folder.path), status=2)
        text = command(
            capsys,
            "train",
            str(folder.path),
            "--overwrite",
            "--training.steps",
            "1",
            "--from",
            str(folder.checkpoints / "step_000002"),
        )
        assert "trained 1 steps" in text

    @pytest.mark.parametrize("option", [("--overwrite",), ("--from", "/nowhere")])
    def test_going_on_and_beginning_anew_contradict_each_other(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder], option: tuple[str, ...]
    ) -> None:
        text = command(capsys, "train", str(mine[1].path), "--resume", *option, status=2)
        assert f"--resume goes on with the run that is there, and {option[0]} begins a new one" in text

    def test_a_run_goes_on_from_inside_its_folder(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(mine[1].path)
        assert "trained 2 steps" in command(capsys, "train", ".", "--resume")
        assert mine[1].settings().name == "test"

    def test_a_copy_of_a_checkpoint_beside_it_is_somebody_elses(self, mine: tuple[RunSettings, RunFolder]) -> None:
        """Its name begins like a checkpoint's, over which ``--overwrite`` once fell."""
        run, folder = mine
        copy = folder.checkpoints / "step_000002.bak"
        shutil.copytree(folder.checkpoints / "step_000002", copy)
        before = contents(copy)
        folder.check_free(overwrite=True)
        folder.begin(run, overwrite=True)
        assert contents(copy) == before
        assert [path.name for path in folder.checkpoints.iterdir()] == ["step_000002.bak"]


class TestRefusedStarts:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--models.base.path", "/nowhere"), "cannot load '/nowhere'"),
            (
                ("--from", "/nowhere"),
                "/nowhere is no whole checkpoint: it has no state.json; give one such as runs/name/checkpoints",
            ),
            (("--policies.actor.adapter", "/nowhere"), "no adapter at /nowhere"),
            (("--policies.actor.train", "frozen", "--policies.reasoner.train", "frozen"), "nothing to train"),
            (("--environment", "{name='tests.plugins:Flaky', count=0}"), "no tasks"),
        ],
    )
    def test_a_refused_start_leaves_no_folder_behind(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, options: tuple[str, ...], message: str
    ) -> None:
        """The folder once stayed, and the next try was told that it holds a run already."""
        (tmp_path / "recipe.toml").write_text(to_toml(settings("tiny", tmp_path / "new" / "runs")))
        for _ in range(2):
            assert message in command(capsys, "train", str(tmp_path / "recipe.toml"), *options, status=2)
            assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]

    def test_a_refused_start_leaves_what_was_there(self, tmp_path: Path) -> None:
        (tmp_path / "test").mkdir()
        (tmp_path / "test" / "notes.txt").write_text("mine")
        run = settings("tiny", tmp_path, "--models.base.path", "/nowhere")
        with pytest.raises(ValueError, match="cannot load"):
            train(run, RunFolder(tmp_path / "test"))
        assert contents(tmp_path) == {"test/notes.txt": b"mine"}


class TestGoingOn:
    def test_what_shapes_learning_cannot_change(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
    ) -> None:
        """``--resume --algorithm.name grpo`` once said grpo and ran gae."""
        _, folder = mine
        before = contents(folder.path)
        text = command(
            capsys, "train", str(folder.path), "--resume", "--algorithm.name", "grpo", "--seed", "3", status=2
        )
        assert "algorithm.name: 'marft' → 'grpo', and with it " in text
        assert "algorithm.credit.name" in text
        assert "seed: 0 → 3" in text
        assert "start a new run with these weights" in text
        assert contents(folder.path) == before

    def test_a_recipe_that_was_edited_by_hand_is_caught(self, mine: tuple[RunSettings, RunFolder]) -> None:
        _, folder = mine
        text = folder.config.read_text()
        folder.config.write_text(text.replace("learning_rate = 0.01", "learning_rate = 0.02"))
        with pytest.raises(ValueError, match=r"algorithm.optimizer.learning_rate: 0.01 → 0.02"):
            train(folder.settings(), folder, resume=True)

    @pytest.mark.parametrize(
        "override",
        [
            ("--algorithm.kl_stop", "0.2"), ("--policies.actor.lora.rank", "4"), ("--agents.actor.instructions", "Else."),
            ("--agents.actor.sampling.temperature", "0.9"), ("--rollout.tasks_per_step", "3"), ("--models.base.dtype", "bfloat16"),
            ("--environment.params.max_terms", "4"), ("--models.base.context", "256"), ("--team.sees", "previous"),
            ("--policies.actor.learning_rate", "1e-3"), ("--channel.name", "last"), ("--rewards", "[{name='outcome'}]"),
        ],
    )  # fmt: skip
    def test_every_such_setting_counts(self, override: tuple[str, str]) -> None:
        assert list(changes(parse_recipe(recipe()), parse_recipe(recipe(), override))) != []

    @pytest.mark.parametrize(
        "override",
        [
            ("--training.steps", "9"), ("--output", "elsewhere"), ("--name", "other"), ("--device", "auto"), ("--threads", "2"),
            ("--checkpoints.every", "7"), ("--evaluation.tasks", "9"), ("--engine.max_rows", "9"), ("--rollout.timeout_seconds", "9"),
            ("--training.tokens_per_micro_batch", "512"), ("--models.base.gradient_checkpointing", "true"), ("--models.base.path", "/moved"),
        ],
    )  # fmt: skip
    def test_what_is_no_part_of_learning_may_change(self, override: tuple[str, str]) -> None:
        assert changes(parse_recipe(recipe()), parse_recipe(recipe(), override)) == {}

    def test_the_order_of_agents_counts(self) -> None:
        table = recipe()
        table["agents"] = table["agents"][::-1]
        assert "agents.order" in changes(parse_recipe(recipe()), parse_recipe(table))

    def test_a_longer_run_under_a_schedule_says_that_the_rate_jumps(self, tmp_path: Path) -> None:
        cosine = ("--algorithm.optimizer.schedule", "cosine")
        _, folder = finished(tmp_path, *cosine)
        observer = Listening()
        longer = settings("tiny", tmp_path, *cosine, "--training.steps", "3")
        assert train(longer, folder, resume=True, observer=observer).step == 3
        (note,) = observer.notes
        assert "training.steps: 2 → 3, and the learning rate follows a cosine schedule" in note

    def test_another_base_under_the_same_path_is_noticed(
        self, mine: tuple[RunSettings, RunFolder], random_model: Path
    ) -> None:
        run, folder = mine
        moved = run.model_copy(
            update={"models": {"base": run.models["base"].model_copy(update={"path": str(random_model)})}}
        )
        with pytest.raises(ValueError, match=r"models.base is not what the run learned with up to step 2"):
            train(moved, folder, resume=True)

    def test_other_training_tasks_under_the_same_recipe_are_noticed(
        self, mine: tuple[RunSettings, RunFolder], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run, folder = mine
        first, *others = training.training_tasks(run)
        corrected = replace(first, data={**first.data, "answer": "another"})
        monkeypatch.setattr(training, "training_tasks", lambda run: [corrected, *others])
        with pytest.raises(ValueError, match=r"training tasks are not those that the run learned from up to step 2"):
            train(run, folder, resume=True)

    def test_a_recipe_that_cannot_be_read_says_where_a_copy_is(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
    ) -> None:
        _, folder = mine
        copy = folder.checkpoints / "step_000002" / "recipe.toml"
        folder.config.write_text("name = ")
        text = command(capsys, "train", str(folder.path), "--resume", status=2)
        assert f"The recipe it was made with is in {copy}" in text
        folder.config.unlink()
        assert f"is in {copy}" in command(capsys, "train", str(folder.path), "--resume", status=2)
        folder.config.write_bytes(copy.read_bytes())
        assert "trained 2 steps" in command(capsys, "train", str(folder.path), "--resume")

    def test_a_run_that_begins_with_old_weights_keeps_them_from_the_first_moment(
        self, trained: RunFolder, tmp_path: Path
    ) -> None:
        """It once went on without them when it was stopped before its first checkpoint."""
        source = trained.checkpoints / "step_000002"
        run = settings("tiny", tmp_path, "--checkpoints.every", "100", "--training.steps", "3")
        whole = RunFolder(tmp_path / "test")
        train(run, whole, start_from=source)
        stopped = RunFolder(tmp_path / "stopped")

        class Dying(Silent):
            def step(self, step: int, metrics: dict[str, float]) -> None:
                raise KeyboardInterrupt

        again = settings("tiny", tmp_path, "--checkpoints.every", "100", "--training.steps", "3", "--name", "stopped")
        with pytest.raises(KeyboardInterrupt):
            train(again, stopped, start_from=source, observer=Dying())
        assert verify(stopped.checkpoints / "step_000000").step == 0
        train(again, stopped, resume=True)
        a, b = (f.checkpoints / "step_000003" / "optimizer.safetensors" for f in (whole, stopped))
        assert a.read_bytes() == b.read_bytes()

    def test_old_weights_are_checked_before_they_are_used(
        self, mine: tuple[RunSettings, RunFolder], tmp_path: Path
    ) -> None:
        _, folder = mine
        source = folder.checkpoints / "step_000002"
        weights = source / "policies" / "actor" / "adapter_model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(bytes(content))
        with pytest.raises(ValueError, match=r"adapter_model.safetensors is damaged"):
            train(settings("tiny", tmp_path / "new"), RunFolder(tmp_path / "new" / "test"), start_from=source)
        assert not (tmp_path / "new").exists()


class TestDamage:
    @pytest.mark.parametrize(
        "damage",
        [
            lambda path: path.write_text(path.read_text().replace('"tasks_drawn": 4', '"tasks_drawn": 5')),
            lambda path: path.write_text(path.read_text().replace('"step": 2', '"step": 3')),
            lambda path: path.write_text("[]"),
            lambda path: path.write_bytes(b"\xff\xfe"),
            lambda path: path.unlink(),
            lambda path: (path.parent / "recipe.toml").write_text("seed = 1"),
            lambda path: (path.parent / "critic.safetensors").unlink(),
            lambda path: (path.parent / "policies" / "actor" / "extra.safetensors").write_bytes(b""),
        ],
    )
    def test_a_checkpoint_that_is_not_as_it_was_written_is_passed_over_and_named(
        self, mine: tuple[RunSettings, RunFolder], damage: Callable[[Path], Any]
    ) -> None:
        """A changed digit in ``state.json`` once went unnoticed."""
        run, folder = mine
        damage(folder.checkpoints / "step_000002" / "state.json")
        observer = Listening()
        assert train(run, folder, resume=True, observer=observer).step == 2
        (note,) = observer.notes
        assert "passed over a checkpoint" in note
        assert "step_000002" in note

    def test_a_bad_line_of_the_metrics_takes_no_other_with_it(self, mine: tuple[RunSettings, RunFolder]) -> None:
        """Everything after it was once deleted."""
        run, folder = mine
        lines = folder.metrics.read_bytes().splitlines(keepends=True)
        damaged = b"\x00\xff half a line\n" + lines[1]
        folder.metrics.write_bytes(damaged)
        assert [row["step"] for row in folder.read_metrics()] == [2]
        assert folder.metrics_problems() == ["line 1 cannot be read"]
        write_report(folder)
        assert "metrics.jsonl: line 1 cannot be read" in folder.report.read_text()
        observer = Listening()
        train(run, folder, resume=True, observer=observer)
        (note,) = observer.notes
        assert "line 1 cannot be read; nothing is known of step 1" in note
        assert "metrics.damaged-1.jsonl" in note
        assert (folder.path / "metrics.damaged-1.jsonl").read_bytes() == damaged
        assert folder.metrics.read_bytes() == lines[1]

    def test_a_changed_number_in_the_metrics_is_noticed(self, mine: tuple[RunSettings, RunFolder]) -> None:
        run, folder = mine
        rows = folder.read_metrics()
        folder.metrics.write_text("".join(json.dumps({**row, "reward": 1.0}) + "\n" for row in rows))
        observer = Listening()
        train(run, folder, resume=True, observer=observer)
        assert "not those that were written" in observer.notes[0]
        assert [row["step"] for row in folder.read_metrics()] == [1, 2]

    def test_metrics_after_the_checkpoint_go_and_the_rest_stays_to_the_byte(self, tmp_path: Path) -> None:
        log = Log(tmp_path / "metrics.jsonl")
        for step in (1, 2):
            log.append({"step": step, "reward": float("nan")})
        mark, content = log.mark(), (tmp_path / "metrics.jsonl").read_bytes()
        assert mark == Mark.of(content)
        log.append({"step": 3})
        log.close()
        with (tmp_path / "metrics.jsonl").open("ab") as file:
            file.write(b'{"step": 4, "rew')
        assert read_rows(tmp_path / "metrics.jsonl")[1] == []
        assert rewind(tmp_path / "metrics.jsonl", 2, mark) == []
        assert (tmp_path / "metrics.jsonl").read_bytes() == content
        (tmp_path / "metrics.jsonl").unlink()
        assert "steps 1 to 2 are missing" in rewind(tmp_path / "metrics.jsonl", 2, mark)[0]

    def test_checkpoints_are_counted_not_spelled(self, mine: tuple[RunSettings, RunFolder]) -> None:
        run, folder = mine
        checkpoints = Checkpoints(folder, run.checkpoints)
        (folder.checkpoints / "step_000002").rename(folder.checkpoints / "step_1000000")
        (folder.checkpoints / "step_mine").mkdir()
        assert [path.name for path in checkpoints.steps()] == ["step_000001", "step_1000000"]
        with pytest.raises(ValueError, match=r"no checkpoint '../test/checkpoints/step_000001'"):
            checkpoints.find("../test/checkpoints/step_000001")

    def test_a_damaged_evaluation_is_named(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
    ) -> None:
        mine[1].write_evaluation({"checkpoint": "base"}, "base-greedy")
        (mine[1].evaluations / "base-greedy.json").write_text("{")
        assert "base-greedy.json is damaged" in command(capsys, "compare", str(mine[1].path), status=2)

    @pytest.mark.parametrize(
        "damage",
        [
            lambda path: path.write_text("[" * 100_000),
            lambda path: (path.unlink(), os.mkfifo(path)),
            lambda path: (path.with_name("recipe.toml").unlink(), os.mkfifo(path.with_name("recipe.toml"))),
            lambda path: path.write_bytes((path.parents[1] / "step_000001" / "state.json").read_bytes()),
        ],
    )
    def test_what_could_not_even_be_read_is_passed_over_in_time(
        self, mine: tuple[RunSettings, RunFolder], damage: Callable[[Path], Any]
    ) -> None:
        """A pipe was once waited for, for ever."""
        run, folder = mine
        damage(folder.checkpoints / "step_000002" / "state.json")
        record, (problem,) = Checkpoints(folder, run.checkpoints).newest()
        assert record is not None
        assert record.state.step == 1
        assert "step_000002" in problem

    @pytest.mark.parametrize("make", [lambda path: path.write_text("[" * 100_000), os.mkfifo])
    def test_a_mark_that_cannot_be_read_is_none(self, tmp_path: Path, make: Callable[[Path], Any]) -> None:
        make(tmp_path / "run.json")
        assert not RunFolder(tmp_path).is_run()

    def test_a_checkpoint_under_another_steps_name_is_passed_over(self, mine: tuple[RunSettings, RunFolder]) -> None:
        """The run once went back to it at every start, and let go of those that it had written since."""
        run, folder = mine
        shutil.copytree(folder.checkpoints / "step_000001", folder.checkpoints / "step_000009")
        record, (problem,) = Checkpoints(folder, run.checkpoints).newest()
        assert record is not None
        assert record.state.step == 2
        assert "step_000009 is the checkpoint of step 1" in problem

    def test_what_was_passed_over_is_not_kept_in_the_place_of_whole_checkpoints(
        self, mine: tuple[RunSettings, RunFolder]
    ) -> None:
        """With ``keep_last = 1`` the damaged one, being the last by its name, was once all that stayed."""
        run, folder = mine
        (folder.checkpoints / "step_000002").rename(folder.checkpoints / "step_000004")
        keep_one = settings("tiny", folder.path.parent, "--checkpoints.keep_last", "1", "--checkpoints.keep_best=false")
        assert train(keep_one, folder, resume=True).step == 2
        assert verify(folder.checkpoints / "step_000002").step == 2
        assert [path.name for path in Checkpoints(folder, run.checkpoints).steps()] == ["step_000002", "step_000004"]

    def test_what_somebody_put_in_the_place_of_a_checkpoint_is_put_aside(
        self, mine: tuple[RunSettings, RunFolder]
    ) -> None:
        """It was once deleted with the damaged one; and a link there ended the run when it was to save."""
        _, folder = mine
        second = folder.checkpoints / "step_000002"
        (second / "thesis.tex").write_text("years of work")
        (second / "state.json").unlink()
        (folder.checkpoints / "step_000003").symlink_to(folder.path.parent)
        (folder.checkpoints / "step_000004").write_text("mine")
        train(settings("tiny", folder.path.parent, "--training.steps", "4"), folder, resume=True)
        aside = folder.checkpoints / "step_000002.damaged-1"
        assert contents(aside) == {"thesis.tex": b"years of work"}
        assert (folder.checkpoints / "step_000003.damaged-1").readlink() == folder.path.parent
        assert (folder.checkpoints / "step_000004.damaged-1").read_text() == "mine"
        assert verify(folder.checkpoints / "step_000004").step == 4

    @pytest.mark.parametrize(
        ("file", "change", "message"),
        [
            ("critic.safetensors", lambda tensors: {}, "its critic is another one"),
            (
                "critic.safetensors",
                lambda tensors: {name: t[:1] for name, t in tensors.items()},
                "its critic is another",
            ),
            ("critic.safetensors", lambda tensors: {name: t * math.nan for name, t in tensors.items()}, "holds NaN"),
            ("optimizer.safetensors", lambda tensors: {name: t * math.nan for name, t in tensors.items()}, "holds NaN"),
        ],
    )
    def test_a_checkpoint_that_others_made_is_looked_at(
        self, mine: tuple[RunSettings, RunFolder], file: str, change: Callable[[Any], Any], message: str
    ) -> None:
        """Digests say that nothing was changed since, not who wrote them. One number for all once filled a layer."""
        run, folder = mine
        path = folder.checkpoints / "step_000002"
        save_file({name: t.contiguous() for name, t in change(load_file(path / file)).items()}, path / file)
        record = read_record_of(path, file)
        with Stage(run) as stage, pytest.raises(ValueError, match=message):
            restore(record, stage.models, Learner(run, stage.models))

    def test_metrics_are_numbers(self, mine: tuple[RunSettings, RunFolder]) -> None:
        _, folder = mine
        folder.metrics.write_text(
            '{"step": 1, "episodes": "many"}\n{"step": 2, "reward": [1]}\n{"step": 3, "reward": null}\n'
        )
        assert folder.read_metrics() == [{"step": 3, "reward": None}]
        assert folder.metrics_problems() == ["line 1 cannot be read", "line 2 cannot be read"]
        write_report(folder)

    @pytest.mark.parametrize(
        "table",
        [
            {},
            {"checkpoint": "base", "mode": [], "shuffled_messages": False, "tasks": 1},
            {"checkpoint": "base", "mode": "greedy", "shuffled_messages": False, "tasks": 1, "outcomes": [1]},
            {"checkpoint": "base", "mode": "greedy", "shuffled_messages": False, "tasks": 1, "interval": 3},
        ],
    )
    def test_an_evaluation_of_other_types_is_damaged(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder], table: dict[str, Any]
    ) -> None:
        mine[1].write_evaluation(table, "base-greedy")
        assert "base-greedy.json is damaged" in command(capsys, "compare", str(mine[1].path), status=2)

    def test_a_file_in_the_place_of_a_folder_is_said_so(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
    ) -> None:
        shutil.rmtree(mine[1].path / "tensorboard")
        (mine[1].path / "tensorboard").write_text("")
        text = command(capsys, "train", str(mine[1].path), "--resume", status=2)
        assert "a file is where a folder should be" in text

    def test_places_are_counted_with_the_digits_that_are_written(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
    ) -> None:
        folder = str(mine[1].path)
        assert "no entry '²'" in command(capsys, "train", folder, "--resume", "--agents.².answers", "true", status=2)
        for name in ("²", "1" * 5000):
            assert "no episode" in command(capsys, "graph", folder, name, status=2)


class TestOneProcess:
    def test_a_second_process_is_refused_and_told_who_is_at_work(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
    ) -> None:
        _, folder = mine
        before = contents(folder.path)
        with folder.held():
            for options in (("--resume",), ("--overwrite",)):
                text = command(capsys, "train", str(folder.path), *options, status=2)
                assert f"is at work: process {os.getpid()} on" in text
            del before["run.lock"]
            assert contents(folder.path).items() >= before.items()
        assert "trained 2 steps" in command(capsys, "train", str(folder.path), "--resume")

    def test_a_lock_dies_with_its_owner_also_where_the_owner_had_children(self, tmp_path: Path) -> None:
        script = f"""
            import os, time
            from pathlib import Path
            from marft.runs.folder import RunFolder
            with RunFolder(Path({str(tmp_path / "run")!r})).held():
                if os.fork() == 0:
                    time.sleep(600)
                print("held", flush=True)
                time.sleep(600)
        """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            with pytest.raises(ValueError, match=f"process {process.pid} on"), RunFolder(tmp_path / "run").held():
                pass
            process.send_signal(signal.SIGKILL)
            process.wait()
            with RunFolder(tmp_path / "run").held():
                assert json.loads((tmp_path / "run" / "run.lock").read_text())["pid"] == os.getpid()
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the child, which is in no way at work
        assert not (tmp_path / "run").exists()

    def test_a_lock_file_that_its_owner_removed_is_nobodys(self, tmp_path: Path) -> None:
        with lock.held(tmp_path / "run.lock"):
            (tmp_path / "run.lock").unlink()
            with lock.held(tmp_path / "run.lock"):
                pass

    @pytest.mark.parametrize(
        ("host", "pid", "free"), [("here", 2**22 + 1, True), ("here", 1, False), ("there", 1, False)]
    )
    def test_without_locks_an_owner_is_gone_when_its_process_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, pid: int, free: bool
    ) -> None:
        def unsupported(*_: Any) -> None:
            raise OSError(lock.errno.ENOLCK, "No locks available")

        monkeypatch.setattr(lock.fcntl, "flock", unsupported)
        monkeypatch.setattr(lock.socket, "gethostname", lambda: "here")
        (tmp_path / "run.lock").write_text(json.dumps({"pid": pid, "host": host, "since": "yesterday"}))
        if free:
            with lock.held(tmp_path / "run.lock"):
                pass
            return
        with (
            pytest.raises(ValueError, match=rf"process {pid} on {host}, since yesterday.*delete"),
            lock.held(tmp_path / "run.lock"),
        ):
            pass

    @pytest.mark.parametrize("make", [lambda path: path.symlink_to(path.with_name("thesis.tex")), os.mkfifo])
    def test_what_is_no_file_of_the_runs_is_not_written_to(self, tmp_path: Path, make: Callable[[Path], Any]) -> None:
        """What a link in the lock's place led to was once emptied."""
        (tmp_path / "thesis.tex").write_text("years of work")
        make(tmp_path / "run.lock")
        with (
            pytest.raises(ValueError, match=r"run.lock is no file of the run's.*move it away"),
            lock.held(tmp_path / "run.lock"),
        ):
            pass
        assert (tmp_path / "thesis.tex").read_text() == "years of work"


class TestUndoing:
    @staticmethod
    def poisoned(monkeypatch: pytest.MonkeyPatch, poison: Callable[[Learner], Any], steps: tuple[int, ...]) -> None:
        learn = Learner.learn

        def wrong(self: Learner, episodes: Any, progress: Any) -> dict[str, float]:
            metrics = learn(self, episodes, progress)
            if progress.step in steps:
                with torch.no_grad():
                    poison(self)
            return metrics

        monkeypatch.setattr(Learner, "learn", wrong)

    @staticmethod
    def policy(learner: Learner) -> None:
        list(learner.optimizers["actor"].parameters.values())[-1][0, 0] = float("nan")

    @staticmethod
    def critic(learner: Learner) -> None:
        assert learner.critic is not None
        next(iter(learner.critic.parameters().values()))[0] = float("inf")

    @staticmethod
    def moment(learner: Learner) -> None:
        optimizer = learner.optimizers["reasoner"].optimizer
        next(iter(optimizer.state.values()))["exp_avg_sq"].fill_(float("inf"))

    @pytest.mark.parametrize(
        ("poison", "advice"),
        [(policy, "lower policies.actor.learning_rate"), (critic, "lower algorithm.critic.learning_rate (now 0.001)"), (moment, "lower policies.reasoner.learning_rate")],
    )  # fmt: skip
    @pytest.mark.parametrize("at", [0, 1])
    def test_a_step_that_does_not_stay_finite_is_undone_counted_and_explained(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poison: Any, advice: str, at: int
    ) -> None:
        """Such a step once went into the checkpoint, which then was the newest whole one."""
        self.poisoned(monkeypatch, getattr(poison, "__func__", poison), (at,))
        run, observer = settings("tiny", tmp_path, "--algorithm.entropy", "0.1"), Listening()
        folder = RunFolder.create(run)
        train(run, folder, observer=observer)
        (note,) = observer.notes
        assert note.startswith(f"step {at + 1}: ")
        assert advice in note
        assert [row["undone_steps"] for row in folder.read_metrics()] == [float(at == 0), float(at == 1)]
        for file in folder.checkpoints.rglob("*.safetensors"):
            assert all(tensor.isfinite().all() for tensor in load_file(file).values()), file
        if at == 1:  # nothing of the undone step is left, moments and all
            one, two = (folder.checkpoints / f"step_00000{n}" for n in (1, 2))
            for file in one.rglob("*.safetensors"):
                assert file.read_bytes() == (two / file.relative_to(one)).read_bytes()

    def test_a_run_of_nothing_but_undone_steps_stops_and_says_what_to_change(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.poisoned(monkeypatch, self.policy, tuple(range(100)))
        run = settings("tiny", tmp_path, "--training.steps", "9")
        with pytest.raises(RunError, match=rf"the {MOST_IN_A_ROW}th in a row.*lower policies.actor.learning_rate"):
            train(run, RunFolder.create(run))

    def test_what_was_before_comes_back_to_the_bit_and_a_healthy_step_is_not_touched(self) -> None:
        run = settings("tiny", "runs", "--algorithm.entropy", "0.1")
        with Stage(run) as stage:
            learner = Learner(run, stage.models)
            (before := Before(learner)).take()
            optimizer = learner.optimizers["actor"]
            values = optimizer.snapshot().parameters
            for parameter in optimizer.parameters.values():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            assert not_finite(learner) == []
            assert any(not torch.equal(a, b) for a, b in zip(values, optimizer.snapshot().parameters, strict=True))
            before.restore()
            assert all(torch.equal(a, b) for a, b in zip(values, optimizer.snapshot().parameters, strict=True))
            assert not optimizer.optimizer.state

    @pytest.mark.parametrize("train", ["lora", "full"])
    def test_what_is_kept_for_undoing_takes_no_new_memory_and_is_nobody_elses(self, train: str) -> None:
        run = settings("tiny", "runs", "--policies.actor.train", train)
        learner = Learner(run, Models(run))
        optimizer = learner.optimizers["actor"]

        def step() -> None:
            for parameter in optimizer.parameters.values():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()

        step()  # there are moments now
        (before := Before(learner)).take()
        kept = {tensor.data_ptr() for part in before._kept for tensors in part for tensor in tensors.values()}
        moments = optimizer_tensors(optimizer.optimizer, optimizer.parameters)
        live = {tensor.data_ptr() for tensor in (*optimizer.parameters.values(), *moments.values())}
        step()
        before.take()
        assert kept == {tensor.data_ptr() for part in before._kept for tensors in part for tensor in tensors.values()}
        assert not kept & live
        second = optimizer.snapshot()
        for _ in range(2):  # undone twice: what was put back the first time has been moved since
            step()
            before.restore()
            now = optimizer.snapshot()
            assert all(map(torch.equal, now.parameters, second.parameters))
            assert now.moments.keys() == second.moments.keys() != set()
            assert all(torch.equal(now.moments[key], value) for key, value in second.moments.items())

    def test_no_checkpoint_takes_what_is_not_finite(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path)
        folder = RunFolder.create(run)
        with Stage(run) as stage:
            learner = Learner(run, stage.models)
            with torch.no_grad():
                self.policy(learner)
            with pytest.raises(AssertionError, match="not finite"):
                Checkpoints(folder, run.checkpoints).save(State(1), run, stage.models, learner, Mark.of(b""))
        assert not folder.checkpoints.exists()
