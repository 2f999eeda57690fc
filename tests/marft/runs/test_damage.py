"""What is damaged in a run's folder is named and passed over, never silently dropped."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from marft.common.errors import UserError
from marft.common.version import __version__
from marft.config import RunSettings
from marft.evaluation.report import write_report
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.checkpoints import CheckpointManager, restore
from marft.runs.metrics_log import LogDigest, MetricsLog, read_rows, truncate_log
from marft.runs.run_folder import RunFolder
from marft.runs.state import CheckpointRecord, read_record, verify
from marft.trainer.learner import Learner
from marft.trainer.train import train
from tests.helpers import settings, write_evaluation
from tests.marft.cli.test_cli import run as command
from tests.nights import BY_NIGHT
from tests.runs import Listening, contents


def rewritten(path: Path, changes: dict[str, Any]) -> None:
    """Change the state of a checkpoint as somebody would who knows how its digest is made."""
    table = {**json.loads((path / "state.json").read_text()), **changes}
    del table["digest"]
    table["digest"] = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
    (path / "state.json").write_text(json.dumps(table))


def read_record_of(path: Path, changed: str) -> CheckpointRecord:
    """The record of a checkpoint one of whose files was changed that way."""
    files = json.loads((path / "state.json").read_text())["files"]
    rewritten(path, {"files": {**files, changed: hashlib.sha256((path / changed).read_bytes()).hexdigest()}})
    return read_record(path)


class TestDamage:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "damage",
        [
            lambda path: path.write_text(path.read_text().replace('"tasks_drawn": 4', '"tasks_drawn": 5')),
            pytest.param(
                lambda path: path.write_text(path.read_text().replace('"step": 2', '"step": 3')), marks=BY_NIGHT
            ),
            pytest.param(lambda path: path.write_text("[]"), marks=BY_NIGHT),
            lambda path: path.write_bytes(b"\xff\xfe"),
            pytest.param(lambda path: path.unlink(), marks=BY_NIGHT),
            pytest.param(lambda path: (path.parent / "recipe.toml").write_text("seed = 1"), marks=BY_NIGHT),
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
        assert train(run, folder, resume=True, callbacks=[observer]).step == 2
        (note,) = observer.notes
        assert "passed over a checkpoint" in note
        assert "step_000002" in note

    @pytest.mark.slow
    def test_a_bad_line_of_the_metrics_takes_no_other_with_it(self, mine: tuple[RunSettings, RunFolder]) -> None:
        """Everything after it was once deleted."""
        run, folder = mine
        lines = folder.metrics_path.read_bytes().splitlines(keepends=True)
        damaged = b"\x00\xff half a line\n" + lines[1]
        folder.metrics_path.write_bytes(damaged)
        assert [row["step"] for row in folder.read_metrics()] == [2]
        assert folder.metrics_problems() == ["line 1 cannot be read"]
        write_report(folder)
        assert "metrics.jsonl: line 1 cannot be read" in folder.report_path.read_text()
        observer = Listening()
        train(run, folder, resume=True, callbacks=[observer])
        (note,) = observer.notes
        assert "line 1 cannot be read; nothing is known of step 1" in note
        assert "metrics.damaged-1.jsonl" in note
        assert (folder.path / "metrics.damaged-1.jsonl").read_bytes() == damaged
        assert folder.metrics_path.read_bytes() == lines[1]

    def test_a_changed_number_in_the_metrics_is_noticed(self, mine: tuple[RunSettings, RunFolder]) -> None:
        run, folder = mine
        rows = folder.read_metrics()
        folder.metrics_path.write_text("".join(json.dumps({**row, "reward": 1.0}) + "\n" for row in rows))
        observer = Listening()
        train(run, folder, resume=True, callbacks=[observer])
        assert "not those that were written" in observer.notes[0]
        assert [row["step"] for row in folder.read_metrics()] == [1, 2]

    def test_metrics_after_the_checkpoint_go_and_the_rest_stays_to_the_byte(self, tmp_path: Path) -> None:
        log = MetricsLog(tmp_path / "metrics.jsonl")
        for step in (1, 2):
            log.append({"step": step, "reward": float("nan")})
        mark, content = log.current_digest(), (tmp_path / "metrics.jsonl").read_bytes()
        assert mark == LogDigest.from_content(content)
        log.append({"step": 3})
        log.close()
        with (tmp_path / "metrics.jsonl").open("ab") as file:
            file.write(b'{"step": 4, "rew')
        assert read_rows(tmp_path / "metrics.jsonl")[1] == []
        assert truncate_log(tmp_path / "metrics.jsonl", 2, mark) == []
        assert (tmp_path / "metrics.jsonl").read_bytes() == content
        (tmp_path / "metrics.jsonl").unlink()
        assert "steps 1 to 2 are missing" in truncate_log(tmp_path / "metrics.jsonl", 2, mark)[0]

    def test_checkpoints_are_counted_not_spelled(self, mine: tuple[RunSettings, RunFolder]) -> None:
        run, folder = mine
        checkpoints = CheckpointManager(folder, run.checkpoints)
        (folder.checkpoints / "step_000002").rename(folder.checkpoints / "step_1000000")
        (folder.checkpoints / "step_mine").mkdir()
        assert [path.name for path in checkpoints.steps()] == ["step_000001", "step_1000000"]
        with pytest.raises(ValueError, match=r"no checkpoint '../test/checkpoints/step_000001'"):
            checkpoints.find("../test/checkpoints/step_000001")

    def test_a_damaged_evaluation_is_named(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
    ) -> None:
        write_evaluation(mine[1], {"checkpoint": "base"}, "base-greedy")
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
        record, (problem,) = CheckpointManager(folder, run.checkpoints).newest()
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
        record, (problem,) = CheckpointManager(folder, run.checkpoints).newest()
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
        assert [path.name for path in CheckpointManager(folder, run.checkpoints).steps()] == [
            "step_000002",
            "step_000004",
        ]

    @pytest.mark.slow
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
        with LocalRolloutRunner(run) as rollouts, pytest.raises(ValueError, match=message):
            restore(record, rollouts.models, Learner(run, rollouts.models))

    def test_metrics_are_numbers(self, mine: tuple[RunSettings, RunFolder]) -> None:
        _, folder = mine
        folder.metrics_path.write_text(
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
        write_evaluation(mine[1], table, "base-greedy")
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

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("step", "2"), ("step", 2.0), ("step", True), ("step", -1), ("best_score", "high"), ("component_state", [1.0]),
            ("component_state", {"mean": "x"}), ("tasks_drawn", None), ("log", {"length": "1", "digest": ""}), ("log", []),
            ("files", ["recipe.toml"]), ("models", {"models.base": 1}), ("version", 1), ("more", 1),
        ],
    )  # fmt: skip
    def test_a_state_of_other_types_is_said_in_a_sentence(
        self, mine: tuple[RunSettings, RunFolder], key: str, value: Any
    ) -> None:
        """Texts for numbers, whose digest was right, once came to light where the run counted on with them."""
        run, folder = mine
        rewritten(folder.checkpoints / "step_000002", {key: value})
        record, (problem,) = CheckpointManager(folder, run.checkpoints).newest()
        assert record is not None
        assert record.state.step == 1
        assert f"state.json holds what no run writes: {key}" in problem
        assert "\n" not in problem

    @pytest.mark.parametrize(
        ("changes", "hint"),
        [
            ({}, "; the likely cause is that another version of MARFT wrote it"),
            ({"version": "0.0.7"}, f"; it was written by another version of MARFT (0.0.7; this is {__version__})"),
        ],
    )
    def test_a_state_of_another_version_is_said_to_be_one(
        self, mine: tuple[RunSettings, RunFolder], changes: dict[str, Any], hint: str
    ) -> None:
        newest = mine[1].checkpoints / "step_000002"
        rewritten(newest, {"returns": {}, **changes})
        with pytest.raises(UserError) as raised:
            read_record(newest)
        assert str(raised.value).endswith(f"holds what no run writes: returns: Unexpected keyword argument{hint}")

    @pytest.mark.parametrize("content", ["null", "3", "[]", '"digest"'])
    def test_a_state_that_is_no_table_is_said_to_be_none(
        self, mine: tuple[RunSettings, RunFolder], content: str
    ) -> None:
        newest = mine[1].checkpoints / "step_000002"
        (newest / "state.json").write_text(content)
        with pytest.raises(UserError, match=r"step_000002 is no whole checkpoint: state\.json holds no table$"):
            read_record(newest)

    def test_a_state_that_says_nothing_of_tasks_set_aside_has_none(self, mine: tuple[RunSettings, RunFolder]) -> None:
        newest = mine[1].checkpoints / "step_000002"
        table = json.loads((newest / "state.json").read_text())
        del table["excluded_tasks"]
        (newest / "state.json").write_text(json.dumps(table))
        rewritten(newest, {})
        assert read_record(newest).state.excluded_tasks == {}
