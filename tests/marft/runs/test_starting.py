"""How runs start anew: what is refused, what is deleted, and what a refused start leaves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from marft.common.errors import RunError
from marft.config import RunSettings, load_recipe, to_toml
from marft.runs.run_files import find_run_files
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.helpers import settings
from tests.marft.cli.test_cli import run as command
from tests.nights import BY_NIGHT
from tests.runs import Listening, contents


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

    def test_a_start_that_was_killed_while_it_wrote_its_mark_keeps_nobody_from_starting(self, tmp_path: Path) -> None:
        folder, draft = RunFolder(tmp_path / "test"), ".unfinished-0123456789abcdef"
        folder.path.mkdir()
        (folder.path / draft).write_text('{"form')
        (folder.path / "run.lock").write_text("")
        RunFolder.create(settings("tiny", tmp_path))
        assert folder.is_run()
        assert not (folder.path / draft).exists()
        (tmp_path / "mine" / draft).mkdir(parents=True)
        with pytest.raises(ValueError, match="no mark of one"):
            RunFolder(tmp_path / "mine").check_free()

    @pytest.mark.slow
    def test_what_was_being_written_when_a_run_was_killed_goes_when_it_goes_on(
        self, mine: tuple[RunSettings, RunFolder]
    ) -> None:
        run, folder = mine
        drafts = [place / ".unfinished-0123456789abcdef" for place in (folder.episodes, folder.credit)]
        for draft in drafts:
            draft.write_bytes(b"PAR1")
        train(run, folder, resume=True)
        assert not any(draft.exists() for draft in drafts)

    def test_only_what_the_run_wrote_goes(self, mine: tuple[RunSettings, RunFolder]) -> None:
        run, folder = mine
        foreign = ["notes.txt", "checkpoints/mine/model.safetensors", "episodes/step.parquet", "evaluations/summary.json",
                   "tensorboard/notes"]  # fmt: skip
        for name in foreign:
            (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
            (folder.path / name).write_text("theirs")
        observer = Listening()
        state = train(run.model_copy(update={"seed": 5}), folder, overwrite=True, callbacks=[observer])
        assert state.step == 2
        assert load_recipe(folder.config_path).seed == 5
        assert all((folder.path / name).read_text() == "theirs" for name in foreign)
        (note,) = observer.notes
        assert all(name in note for name in foreign)

    @pytest.mark.slow
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
        assert {"run.json", "config.toml", "metrics.jsonl"} <= {p.name for p in find_run_files(folder.path)}
        before = {path for path in folder.path.rglob("*") if path.is_file()}
        assert before - set(find_run_files(folder.path)) == {folder.path / "run.lock"}
        assert folder.begin(run, overwrite=True) == []
        assert sorted(p.name for p in folder.path.iterdir()) == ["config.toml", "run.json", "run.lock"]

    @pytest.mark.slow
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

    @BY_NIGHT
    @pytest.mark.slow
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
            "--init-from",
            str(folder.checkpoints / "step_000002"),
        )
        assert "trained 1 steps" in text

    @pytest.mark.parametrize("option", [("--overwrite",), ("--init-from", "/nowhere")])
    def test_going_on_and_beginning_anew_contradict_each_other(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder], option: tuple[str, ...]
    ) -> None:
        text = command(capsys, "train", str(mine[1].path), "--resume", *option, status=2)
        assert f"--resume goes on with the run that is there, and {option[0]} begins a new one" in text

    @BY_NIGHT
    @pytest.mark.slow
    def test_a_run_goes_on_from_inside_its_folder(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(mine[1].path)
        assert "2 steps were trained" in command(capsys, "train", ".", "--resume")
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
                ("--init-from", "/nowhere"),
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

    def test_a_run_whose_first_step_failed_is_no_hindrance(self, tmp_path: Path) -> None:
        """Who has put the reward function right starts again, and has nothing to lose."""
        folder = RunFolder(tmp_path / "test")
        broken = "{name='tests.plugins:Flaky', fails='all'}"
        with pytest.raises(RunError, match="none of"):
            train(settings("tiny", tmp_path, "--environment", broken), folder)
        folder.check_free()
        train(settings("tiny", tmp_path, "--training.steps", "1"), folder)
        assert len(folder.read_metrics()) == 1
        assert len(list((folder.path / "tensorboard").iterdir())) == 1  # the failed one's is gone
        with pytest.raises(ValueError, match="holds a run already"):
            folder.check_free()

    @pytest.mark.parametrize("kept", ["evaluations/base-greedy.json", "episodes/step_000001.parquet"])
    def test_a_run_without_a_step_may_hold_what_somebody_wants(self, tmp_path: Path, kept: str) -> None:
        folder = RunFolder.create(settings("tiny", tmp_path))
        (folder.path / kept).parent.mkdir()
        (folder.path / kept).write_text("{}")
        with pytest.raises(ValueError, match="holds a run already"):
            folder.check_free()

    def test_a_refused_start_leaves_what_was_there(self, tmp_path: Path) -> None:
        (tmp_path / "test").mkdir()
        run = settings("tiny", tmp_path, "--models.base.path", "/nowhere")
        with pytest.raises(ValueError, match="/nowhere"):
            train(run, RunFolder(tmp_path / "test"))
        assert list((tmp_path / "test").iterdir()) == []

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_no_run_begins_among_somebody_elses_files(self, tmp_path: Path, overwrite: bool) -> None:
        """It once did, and wrote its own beside them."""
        (tmp_path / "test" / "plots").mkdir(parents=True)
        (tmp_path / "test" / "plots" / "notes.txt").write_text("mine")
        with pytest.raises(ValueError, match=r"plots is there, and nothing is removed or trained beside it"):
            train(settings("tiny", tmp_path), RunFolder(tmp_path / "test"), overwrite=overwrite)
        assert contents(tmp_path) == {"test/plots/notes.txt": b"mine"}
