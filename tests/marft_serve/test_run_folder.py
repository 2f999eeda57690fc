"""What a run keeps, part by part: its log, what it removes, what may change, its lock, which checkpoint is the best."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from marft import load_run
from marft.cli.evaluation import EvaluationOptions, evaluate
from marft.cli.handlers import export
from marft.common import atomic
from marft.common.atomic import new_folder
from marft.common.callbacks import Callback
from marft.common.errors import RunError
from marft.config import RunSettings, parse_recipe
from marft.config.interfaces.schedule import Progress
from marft.evaluation.session import find_checkpoint
from marft.models.policy_registry import PolicyRegistry
from marft.runs import lock
from marft.runs.changes import change_notes, find_changes
from marft.runs.checkpoints import CheckpointManager, load_critic, load_policies
from marft.runs.export.exporter import export_run
from marft.runs.metrics_log import LogDigest, MetricsLog, read_rows, truncate_log
from marft.runs.run_files import remove_checkpoint, remove_run
from marft.runs.run_folder import RunFolder, parse_step
from marft.runs.state import BEST_METRICS, State, read_record
from marft.trainer import non_finite_guard
from marft.trainer.learner import Learner
from marft.trainer.non_finite_guard import MAX_CONSECUTIVE, NonFiniteGuard
from marft.trainer.train import train
from marft_serve.serving.settings import load_served_team
from tests.helpers import recipe, settings
from tests.nights import BY_NIGHT
from tests.runs import Listening, contents, telling


def begun(output: Path, *files: str) -> RunFolder:
    """A run that has begun, with further files in its folder."""
    folder = RunFolder.create(settings("tiny", output))
    for name in files:
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / name).write_text("{}")
    return folder


class TestTheLog:
    def test_is_json_that_every_reader_takes(self, tmp_path: Path) -> None:
        log = MetricsLog(tmp_path / "metrics.jsonl")
        log.append({"step": 1, "reward": float("nan"), "kl": float("-inf"), "loss": 0.5})
        log.close()

        def refuse(word: str) -> Any:
            raise AssertionError(f"{word} is no JSON")

        text = (tmp_path / "metrics.jsonl").read_text()
        assert json.loads(text, parse_constant=refuse) == {"step": 1, "reward": None, "kl": None, "loss": 0.5}

    @pytest.mark.parametrize("line", ['{"reward": 1}', "[1]", '"x"', "null", '{"step": true}', '{"step": "1"}'])
    def test_a_line_that_says_of_no_step_is_named_and_left_out(self, line: str, tmp_path: Path) -> None:
        path = tmp_path / "metrics.jsonl"
        path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
        assert read_rows(path) == ([{"step": 1}, {"step": 2}], ["line 2 cannot be read"])

    def test_what_was_put_aside_is_not_written_over_by_the_next_damage(self, tmp_path: Path) -> None:
        path, mark = tmp_path / "metrics.jsonl", LogDigest.from_content(b'{"step": 1}\n')
        for damage in ("first", "second"):
            path.write_text(f"{damage}\n")
            (problem,) = truncate_log(path, 1, mark)
        assert "metrics.damaged-2.jsonl" in problem
        assert [(tmp_path / f"metrics.damaged-{n}.jsonl").read_text() for n in (1, 2)] == ["first\n", "second\n"]

    def test_tensorboard_shows_each_step_once_and_numbers_alone(self, tmp_path: Path) -> None:
        folder, listening = begun(tmp_path), Listening()
        for done in (0, 1):  # the second begins after step 1, as if the first had been killed
            with telling(settings("tiny", tmp_path), folder, done, listening) as sinks:
                for step in (1, 2, 3)[done:]:
                    sinks.write(step, {"reward": float(step + 10 * done), "kl": float("nan")})
        board = EventAccumulator(str(folder.path / "tensorboard")).Reload()
        assert [(one.step, one.value) for one in board.Scalars("reward")] == [(1, 1.0), (2, 12.0), (3, 13.0)]
        assert "kl" not in board.Tags()["scalars"]
        assert not listening.notes


class TestRemoving:
    def test_a_run_stays_one_when_the_last_of_it_is_gone(self, tmp_path: Path) -> None:
        """What a crash leaves can be overwritten still."""
        folder = begun(tmp_path, "metrics.jsonl", "episodes/step_000001.parquet", "report.html")
        assert remove_run(folder.path) == []
        assert folder.is_run()
        assert sorted(path.name for path in folder.path.iterdir()) == ["config.toml", "run.json"]

    def test_everything_goes_that_a_run_calls_its_own(self, tmp_path: Path) -> None:
        """What a probe of messages found, and the weights of a whole policy, which its checkpoint lists."""
        whole = "checkpoints/step_000001/policies/actor/model.safetensors"
        folder = begun(
            tmp_path,
            "evaluations/last-greedy-shuffled.json",
            "evaluations/last-greedy-as-tree.json",
            "metrics.damaged-1.jsonl",
            whole,
        )
        state = {"files": {"policies/actor/model.safetensors": "0"}}
        (folder.checkpoints / "step_000001" / "state.json").write_text(json.dumps(state))
        folder.check_free(overwrite=True)
        assert remove_run(folder.path) == []
        assert sorted(path.name for path in folder.path.iterdir()) == ["config.toml", "run.json"]

    @pytest.mark.parametrize("moment", range(4))
    def test_what_a_kill_leaves_of_a_checkpoint_that_was_being_removed_is_the_runs_still(
        self, moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without its list nobody knew whose the rest of it was, and no run could take its place any more."""
        files = ["recipe.toml", "policies/actor/model.safetensors", "ahead.parquet"]
        folder = begun(tmp_path, *(f"checkpoints/step_000001/{name}" for name in files))
        checkpoint = folder.checkpoints / "step_000001"
        (checkpoint / "state.json").write_text(json.dumps({"files": dict.fromkeys(files, "0")}))
        unlink, left = Path.unlink, [moment]

        def mortal(self: Path, missing_ok: bool = False) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            unlink(self, missing_ok)

        monkeypatch.setattr(Path, "unlink", mortal)
        with pytest.raises(KeyboardInterrupt):
            remove_checkpoint(checkpoint)
        monkeypatch.setattr(Path, "unlink", unlink)
        folder.check_free(overwrite=True)
        assert remove_run(folder.path) == []
        assert not folder.checkpoints.exists()

    def test_links_go_and_not_what_they_lead_to(self, tmp_path: Path) -> None:
        folder = begun(tmp_path / "runs")
        (tmp_path / "theirs").mkdir()
        (tmp_path / "theirs" / "work").write_text("years")
        (folder.path / ".unfinished-x").symlink_to(tmp_path / "theirs")
        assert remove_run(folder.path) == []
        assert (tmp_path / "theirs" / "work").read_text() == "years"

    def test_an_empty_folder_of_somebody_elses_stays(self, tmp_path: Path) -> None:
        folder = begun(tmp_path, "metrics.jsonl")
        (folder.path / "plots").mkdir()
        remove_run(folder.path)
        assert sorted(path.name for path in folder.path.iterdir()) == ["config.toml", "plots", "run.json"]


class TestWhatMayChange:
    def test_every_reward_term_counts(self) -> None:
        def terms(first: float) -> dict[str, Any]:
            return recipe(rewards=[{"name": "outcome", "weight": first}, {"name": "step_cost"}])

        assert list(find_changes(parse_recipe(terms(1.0)), parse_recipe(terms(0.5)))) == ["rewards.0.weight"]

    def test_what_is_asked_of_an_endpoint_counts_and_where_it_lies_does_not(self) -> None:
        def remote(name: str = "gpt-x", **endpoint: Any) -> Any:
            table = recipe()
            table["models"]["teacher"] = {"path": name, "endpoint": {"url": "http://127.0.0.1:1/v1", **endpoint}}
            table["policies"]["reasoner"] = {"model": "teacher", "train": "frozen"}
            return parse_recipe(table)

        assert list(find_changes(remote(), remote(extra_body={"effort": "low"}))) != []
        assert list(find_changes(remote(), remote(omit=["seed"]))) != []
        assert list(find_changes(remote(), remote("gpt-y"))) == ["models.teacher.path"]
        assert find_changes(remote(), remote(url="http://127.0.0.1:2/v1", max_retries=1, timeout_seconds=5.0)) == {}

    def test_only_a_schedule_has_a_length_that_shows(self) -> None:
        def run(schedule: str, steps: str) -> Any:
            return parse_recipe(recipe(), ("--algorithm.optimizer.schedule", schedule, "--training.steps", steps))

        assert list(change_notes(run("constant", "2"), run("constant", "9"))) == []
        assert list(change_notes(run("linear", "2"), run("linear", "2"))) == []
        assert len(list(change_notes(run("linear", "2"), run("linear", "9")))) == 1


class TestWithoutLocks:
    @pytest.fixture(autouse=True)
    def _no_locks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unsupported(*_: Any) -> None:
            raise OSError(lock.errno.EOPNOTSUPP, "not supported")

        monkeypatch.setattr(lock.fcntl, "flock", unsupported)

    def owned(self, path: Path, pid: int) -> Path:
        path.write_text(json.dumps({"pid": pid, "host": lock.socket.gethostname(), "since": "yesterday"}))
        return path

    def test_what_names_ourselves_was_left_by_somebody_who_had_our_number(self, tmp_path: Path) -> None:
        """In a container every run may be process 1."""
        with lock.lock_file(self.owned(tmp_path / "run.lock", os.getpid())):
            pass

    def test_somebody_elses_process_is_alive(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def forbidden(*_: Any) -> None:
            raise PermissionError

        monkeypatch.setattr(os, "kill", forbidden)
        with pytest.raises(ValueError, match="is at work: process 1 on"), lock.lock_file(self.owned(tmp_path / "l", 1)):
            pass


class TestStepsInARow:
    def test_steps_that_are_undone_now_and_then_stop_no_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Still:
            def learn(self, *_: Any) -> dict[str, float]:
                return {}

            def take(self) -> None: ...

            def restore(self) -> None: ...

        broken = [False]
        monkeypatch.setattr(non_finite_guard, "Snapshot", lambda learner: Still())
        monkeypatch.setattr(non_finite_guard, "find_non_finite", lambda learner: ["policies.a"] if broken[0] else [])
        monkeypatch.setattr(non_finite_guard, "suggest_fix", lambda *_: "change it")
        careful = NonFiniteGuard(Still())  # type: ignore[arg-type]
        for step in range(4 * MAX_CONSECUTIVE):
            broken[0] = step % MAX_CONSECUTIVE != 0
            assert careful.learn([], Progress(step, 0))["reverted_steps"] == float(broken[0])
        broken[0] = True
        with pytest.raises(RunError, match="5th in a row"):
            careful.learn([], Progress(0, 0))


class TestTheBestCheckpoint:
    def test_a_first_one_is_the_best_however_bad(self) -> None:
        rated = State(step=3).update_best({"reward": -7.0}, ["reward"])
        assert (rated.best_step, rated.best_score, rated.best_by) == (3, -7.0, "reward")

    def test_among_equals_it_is_the_first(self) -> None:
        before = State(step=4, best_step=3, best_score=0.5, best_by="reward")
        assert before.update_best({"reward": 0.5}, ["reward"]) == before
        assert before.update_best({"reward": float("nan")}, ["reward"]) == before

    def test_scores_on_several_scales_are_never_held_against_each_other(self) -> None:
        """A run that goes on may be validated where it was not before, and the other way around."""
        rewarded = State(step=4, best_step=3, best_score=50.0, best_by="reward")
        validated = rewarded.update_best({"reward": 60.0, "validation_reward": 40.0}, BEST_METRICS[:2])
        assert (validated.best_step, validated.best_score, validated.best_by) == (4, 40.0, "validation_reward")
        assert replace(validated, step=5).update_best({"reward": 60.0}, ["reward"]) == replace(validated, step=5)
        accurate = replace(validated, step=6).update_best(
            {"validation_reward": 1.0, "validation_accuracy": 0.1}, BEST_METRICS
        )
        assert (accurate.best_step, accurate.best_score, accurate.best_by) == (6, 0.1, "validation_accuracy")
        assert replace(accurate, step=7).update_best({"validation_reward": 99.0}, BEST_METRICS).best_step == 6


SCORES = (0.2, 0.9, 0.1, 0.9, 0.3, 0.8)  # validated after each step


def validated_run(output: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str) -> tuple[RunSettings, RunFolder]:
    """A run of six steps that is not trained yet, of which each validation finds what ``SCORES`` has."""
    run = settings("tiny", output, "--training.steps", "6", "--training.record_episodes_every", "0", *overrides)
    folder = RunFolder.create(run)

    def validate(*_: object) -> dict[str, float]:
        return {"validation_accuracy": SCORES[len(folder.read_metrics())]}

    monkeypatch.setattr("marft.trainer.loop.validate", validate)
    return run, folder


@pytest.mark.slow
class TestAValidatedStep:
    @pytest.mark.parametrize("keep_last", ["1", pytest.param("2", marks=BY_NIGHT)])
    @pytest.mark.parametrize(
        ("validates", "saves", "best", "steps"),
        [
            ("2", "3", 2, {2, 3, 6}),
            pytest.param("1", "6", 2, {2, 6}, marks=BY_NIGHT),
            pytest.param("3", "2", 6, {4, 6}, marks=BY_NIGHT),
            ("5", "4", 5, {5, 6}),
        ],
    )
    def test_that_is_the_best_is_saved_whatever_else_is(
        self, validates: str, saves: str, best: int, steps: set[int], keep_last: str, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        run, folder = validated_run(
            tmp_path, monkeypatch, "--evaluation.every", validates, "--checkpoints.every", saves,
            "--checkpoints.keep_last", keep_last,
        )  # fmt: skip
        assert train(run, folder).best_step == best
        checkpoints = CheckpointManager(folder, run.checkpoints)
        assert checkpoints.find("best").name == f"step_{best:06d}"
        assert {parse_step(path) for path in checkpoints.steps()} == {best, *sorted(steps)[-int(keep_last) :]}

    @pytest.mark.parametrize("stops", [*(pytest.param(step, marks=BY_NIGHT) for step in (1, 2, 5)), 3])
    def test_is_the_best_of_a_run_that_stopped_and_went_on_too(
        self, stops: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = ("--evaluation.every", "2", "--checkpoints.every", "3", "--checkpoints.keep_last", "1")
        run, straight = validated_run(tmp_path / "straight", monkeypatch, *options)
        state = train(run, straight)
        run, folder = validated_run(tmp_path / "stopped", monkeypatch, *options)

        class Stopping(Callback):
            def wants_stop(self) -> bool:
                return len(folder.read_metrics()) == stops

        train(run, folder, callbacks=[Stopping()])
        assert train(run, folder, resume=True) == state
        for name in ("step_000002", "step_000006"):
            mine, theirs = (contents(one.checkpoints / name) for one in (folder, straight))
            assert [key for key in theirs if key.endswith(".safetensors") and mine[key] != theirs[key]] == []


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint."""
    run = settings("tiny", tmp_path_factory.mktemp("source"), "--training.steps", "1")
    train(run, folder := RunFolder.create(run))
    return folder.checkpoints / "step_000001"


class TestTheCriticOfAnotherRun:
    WIDER = ("--algorithm.critic.hidden_size", "32")

    def test_goes_on_where_it_fits(self, source: Path) -> None:
        learner = Learner(run := settings(), PolicyRegistry(run))
        assert learner.critic is not None
        with torch.no_grad():
            for parameter in learner.critic.parameters().values():
                parameter.fill_(7.0)
        assert load_critic(source, learner)
        saved = load_file(source / "critic.safetensors")
        assert all(torch.equal(value, saved[name]) for name, value in learner.critic.parameters().items())

    def test_is_left_where_it_does_not_fit(self, source: Path) -> None:
        learner = Learner(run := settings("tiny", "runs", *self.WIDER), PolicyRegistry(run))
        assert load_critic(source, learner) is False

    def test_that_begins_anew_is_said(self, source: Path, tmp_path: Path) -> None:
        for overrides, told in ((self.WIDER, 1), ((), 0), (("--algorithm.name", "grpo"), 0)):
            said: list[str] = []

            class Listening(Callback):
                def on_note(self, text: str, said: list[str] = said) -> None:
                    said.append(text)

                def wants_stop(self) -> bool:
                    return True

            run = settings("tiny", tmp_path / str(len(overrides)) / str(told), *overrides)
            train(run, RunFolder(Path(run.output) / run.name), start_from=source, callbacks=[Listening()])
            assert len([text for text in said if "no critic that fits" in text]) == told


def test_others_may_look_into_what_was_written(tmp_path: Path) -> None:
    """Temporary folders are private; what becomes of them is not."""
    with atomic.new_folder(tmp_path / "a") as draft:
        (draft / "b").write_text("")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755


class TestWhatIsGone:
    def test_a_log_before_any_checkpoint_becomes_empty(self, tmp_path: Path) -> None:
        path = tmp_path / "metrics.jsonl"
        path.write_text('{"step": 1}\n')
        assert truncate_log(path, 0, LogDigest.from_content(b"")) == []
        assert path.read_bytes() == b""

    def test_where_the_best_checkpoint_is_gone_no_other_one_stands_for_it(
        self, mine: tuple[RunSettings, RunFolder]
    ) -> None:
        run, folder = mine
        checkpoints = CheckpointManager(folder, run.checkpoints)
        best = checkpoints.find("best")
        assert best.name == f"step_{read_record(checkpoints.find('last')).state.best_step:06d}"
        if best != checkpoints.find("last"):
            best.rename(folder.path / "elsewhere")
            with pytest.raises(ValueError, match=r"the best checkpoint, is gone .*last, step_000002"):
                checkpoints.find("best")

    @pytest.mark.parametrize("find", ["eval", "export", "serve", "python", "marft eval", "marft export"])
    def test_where_no_step_was_rated_none_is_the_best(
        self, find: str, mine: tuple[RunSettings, RunFolder], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        run, folder = mine
        monkeypatch.setattr("marft.runs.checkpoints.verify", lambda _: State(step=2))
        ways: dict[str, Callable[[], object]] = {
            "eval": lambda: find_checkpoint(run, folder, "best"),
            "export": lambda: export_run(folder, "best", tmp_path / "team"),
            "serve": lambda: load_served_team(folder.path, "best"),
            "python": lambda: load_run(folder.path).checkpoint("best"),
            "marft eval": lambda: evaluate([folder.path], [], EvaluationOptions(checkpoints=("best",), tasks=1)),
            "marft export": lambda: export(
                folder.path, "best", tmp_path / "team", merged=False, overwrite=False, team_file=None
            ),
        }
        with pytest.raises(ValueError, match=r"no best checkpoint: .*validated or rated .*: last, step_00000"):
            ways[find]()
        assert not (tmp_path / "team").exists()

    def test_a_policy_that_a_checkpoint_lacks_is_named(self, source: Path) -> None:
        models = PolicyRegistry(settings())
        with pytest.raises(ValueError, match="holds no policy 'planner'"):
            load_policies(source, models, {"planner": None})

    def test_a_checkpoint_that_went_meanwhile_is_gone_and_does_not_lack_a_policy(self, source: Path) -> None:
        with pytest.raises(ValueError, match=r"step_000009 is gone: .*keep_last"):
            load_policies(source.with_name("step_000009"), PolicyRegistry(settings()), {"planner": None})

    def test_a_run_that_could_not_be_written_down_leaves_no_mark(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(RunFolder, "write_config", full)
        with pytest.raises(OSError, match="No space left"):
            RunFolder.create(settings("tiny", tmp_path))
        assert list((tmp_path / "test").iterdir()) == []


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o700), (0o002, 0o775)])
def test_folders_that_come_whole_have_the_rights_that_any_new_one_has(mask: int, mode: int, tmp_path: Path) -> None:
    """A checkpoint once could be read by everybody, whatever the umask."""
    before = os.umask(mask)
    try:
        with new_folder(tmp_path / "made") as folder:
            (folder / "weights").write_text("1")
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("stopped", [1, 2, 3])
def test_a_folder_that_takes_the_place_of_another_is_never_there_in_part(
    stopped: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, move, moved = tmp_path / "made", Path.replace, list[Path]()
    target.mkdir()
    (target / "weights").write_text("old")

    def to(source: Path, place: Path) -> Path:
        moved.append(place)
        if len(moved) == stopped:
            raise OSError(28, "No space left on device")
        return move(source, place)

    def ended(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", to)
    if stopped == 3:  # while the old one is deleted
        monkeypatch.setattr(atomic.shutil, "rmtree", ended)
    with pytest.raises(KeyboardInterrupt if stopped == 3 else OSError), new_folder(target) as folder:
        (folder / "weights").write_text("new")
    assert (target / "weights").read_text() == ("new" if stopped == 3 else "old")
    assert [file for file in tmp_path.iterdir() if not file.name.startswith(atomic.TEMP_PREFIX)] == [target]


def test_drafts_whose_makers_were_killed_are_cleared_and_no_others(tmp_path: Path) -> None:
    code = "import sys; from marft.common.atomic import new_folder\nwith new_folder(%r) as d: print(d, flush=True); sys.stdin.read()"
    paths = {"killed": tmp_path / "a", "at work": tmp_path / "b"}
    makers = {
        name: subprocess.Popen(
            [sys.executable, "-c", code.replace("%r", f"__import__('pathlib').Path({str(path)!r})")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name, path in paths.items()
    }  # fmt: skip
    drafts = {name: Path(maker.stdout.readline().strip()) for name, maker in makers.items() if maker.stdout}
    makers["killed"].kill()
    makers["killed"].wait()
    moved = tmp_path / f"{atomic.TEMP_PREFIX}0"
    for folder in (moved, moved.with_name(f"{moved.name}{atomic.BACKUP_SUFFIX}"), tmp_path / "mine"):
        folder.mkdir()
    (tmp_path / f"{atomic.TEMP_PREFIX}1").write_text("of a file")
    (tmp_path / f"{atomic.TEMP_PREFIX}2{atomic.BACKUP_SUFFIX}").mkdir()  # what came after it is in its place
    atomic.remove_stale_dirs(tmp_path)
    assert not drafts["killed"].exists()
    assert drafts["at work"].is_dir()
    assert len([*tmp_path.iterdir()]) == 5
    makers["at work"].communicate("")
    assert paths["at work"].is_dir()
