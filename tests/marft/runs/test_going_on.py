"""How runs go on: what may be another setting, and what else is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import marft
from marft.common.callbacks import Callback
from marft.config import RunSettings, parse_recipe
from marft.runs.changes import find_changes
from marft.runs.run_folder import RunFolder
from marft.runs.state import verify
from marft.trainer import train as training
from marft.trainer.train import train
from tests.helpers import recipe, settings
from tests.marft.cli.test_cli import run as command
from tests.nights import BY_NIGHT, NIGHT
from tests.runs import Listening, contents, finished


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
        text = folder.config_path.read_text()
        folder.config_path.write_text(text.replace("learning_rate = 0.01", "learning_rate = 0.02"))
        with pytest.raises(ValueError, match=r"algorithm.optimizer.learning_rate: 0.01 → 0.02"):
            train(folder.settings(), folder, resume=True)

    @pytest.mark.parametrize(
        "override",
        [
            ("--algorithm.kl_stop", "0.2"), ("--policies.actor.lora.rank", "4"), ("--agents.actor.instructions", "Else."),
            ("--agents.actor.sampling.temperature", "0.9"), ("--rollout.tasks_per_step", "3"), ("--models.base.dtype", "bfloat16"),
            ("--environment.params.max_terms", "4"), ("--models.base.context_length", "256"), ("--team.visible", "previous"),
            ("--policies.actor.learning_rate", "1e-3"), ("--channel.name", "last"), ("--rewards", "[{name='outcome'}]"),
        ],
    )  # fmt: skip
    def test_every_such_setting_counts(self, override: tuple[str, str]) -> None:
        assert list(find_changes(parse_recipe(recipe()), parse_recipe(recipe(), override))) != []

    @pytest.mark.parametrize(
        "override",
        [
            ("--training.steps", "9"), ("--output", "elsewhere"), ("--name", "other"), ("--device", "auto"), ("--threads", "2"),
            ("--checkpoints.every", "7"), ("--evaluation.tasks", "9"), ("--engine.max_batch_size", "9"), ("--rollout.timeout_seconds", "9"),
            ("--training.tokens_per_micro_batch", "512"), ("--models.base.gradient_checkpointing", "true"), ("--models.base.path", "/moved"),
        ],
    )  # fmt: skip
    def test_what_is_no_part_of_learning_may_change(self, override: tuple[str, str]) -> None:
        assert find_changes(parse_recipe(recipe()), parse_recipe(recipe(), override)) == {}

    def test_the_order_of_agents_counts(self) -> None:
        table = recipe()
        table["agents"] = table["agents"][::-1]
        assert "agents.order" in find_changes(parse_recipe(recipe()), parse_recipe(table))

    @pytest.mark.slow
    def test_a_longer_run_under_a_schedule_says_that_the_rate_jumps(self, tmp_path: Path) -> None:
        cosine = ("--algorithm.optimizer.schedule", "cosine")
        _, folder = finished(tmp_path, *cosine)
        observer = Listening()
        longer = settings("tiny", tmp_path, *cosine, "--training.steps", "3")
        assert train(longer, folder, resume=True, callbacks=[observer]).step == 3
        note, *_ = observer.notes
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
        first, *others = training.load_training_tasks(run)
        corrected = replace(first, data={**first.data, "answer": "another"})
        monkeypatch.setattr(training, "load_training_tasks", lambda run: [corrected, *others])
        with pytest.raises(ValueError, match=r"training tasks are not those that the run learned from up to step 2"):
            train(run, folder, resume=True)

    @BY_NIGHT
    @pytest.mark.slow
    def test_a_recipe_that_cannot_be_read_says_where_a_copy_is(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
    ) -> None:
        _, folder = mine
        copy = folder.checkpoints / "step_000002" / "recipe.toml"
        folder.config_path.write_text("name = ")
        text = command(capsys, "train", str(folder.path), "--resume", status=2)
        assert f"The recipe it was made with is in {copy}" in text
        folder.config_path.unlink()
        assert f"is in {copy}" in command(capsys, "train", str(folder.path), "--resume", status=2)
        folder.config_path.write_bytes(copy.read_bytes())
        assert "2 steps were trained" in command(capsys, "train", str(folder.path), "--resume")

    @BY_NIGHT
    @pytest.mark.slow
    def test_a_run_that_begins_with_old_weights_keeps_them_from_the_first_moment(
        self, trained: RunFolder, tmp_path: Path
    ) -> None:
        """It once went on without them when it was stopped before its first checkpoint."""
        source = trained.checkpoints / "step_000002"
        run = settings("tiny", tmp_path, "--checkpoints.every", "100", "--training.steps", "3")
        whole = RunFolder(tmp_path / "test")
        train(run, whole, start_from=source)
        stopped = RunFolder(tmp_path / "stopped")

        class Dying(Callback):
            def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
                raise KeyboardInterrupt

        again = settings("tiny", tmp_path, "--checkpoints.every", "100", "--training.steps", "3", "--name", "stopped")
        with pytest.raises(KeyboardInterrupt):
            train(again, stopped, start_from=source, callbacks=[Dying()])
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

    def test_fewer_steps_than_are_done_are_refused(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
    ) -> None:
        """The run once said that it was trained, and its recipe that it was shorter than it is."""
        _, folder = mine
        before = folder.config_path.read_text()
        text = command(capsys, "train", str(folder.path), "--resume", "--training.steps", "1", status=2)
        assert "training.steps = 1, and the run has done 2 already: to go on, give a larger number" in text
        assert folder.config_path.read_text() == before

    @pytest.mark.parametrize("name", ["episodes", "checkpoints", "metrics.jsonl"])
    def test_a_link_in_the_place_of_what_the_run_writes_is_refused(
        self, mine: tuple[RunSettings, RunFolder], name: str
    ) -> None:
        """A new run once wrote its checkpoints among those of the old one, which lay behind the link."""
        run, folder = mine
        outside = folder.path.parent / "outside"
        (folder.path / name).rename(outside)
        (folder.path / name).symlink_to(outside)
        before = contents(folder.path.parent)
        for options in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(ValueError, match=f"{name} is a link, and a run writes and removes in its own folder"):
                train(run, folder, **options)
        after = contents(folder.path.parent)
        assert {name: after[name] for name in before if name != "test/run.lock"} == {
            name: before[name] for name in before if name != "test/run.lock"
        }

    @pytest.mark.parametrize("option", [("--name", "other"), ("--output=elsewhere",)])
    def test_a_run_keeps_its_name_and_its_place(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder], option: tuple[str, ...]
    ) -> None:
        """Another name was once read and not taken."""
        path = mine[1].path
        for words in (("train", str(path), "--resume"), ("train", str(path)), ("eval", str(path))):
            text = command(capsys, *words, *option, status=2)
            assert f"{option[0][:6]}" in text
            assert (
                f"a run keeps its name and its place. For a new run with its recipe: marft train {path}/config.toml"
                in text
            )

    def test_a_folder_whose_name_no_run_can_have_is_to_be_renamed(
        self, capsys: pytest.CaptureFixture[str], mine: tuple[RunSettings, RunFolder]
    ) -> None:
        other = mine[1].path.rename(mine[1].path.with_name("a:b"))
        text = command(capsys, "train", str(other), "--resume", status=2)
        assert f"{other} is no name of a run's folder; rename it" in text
        assert "must be usable as a folder name" in text


class TestLostMarks:
    @pytest.mark.slow
    @pytest.mark.parametrize("damage", [None, "", '{"format": "mine"}'])
    def test_a_run_is_known_by_its_checkpoints_and_is_marked_again(
        self, mine: tuple[RunSettings, RunFolder], damage: str | None
    ) -> None:
        """A healthy run that had lost one small file could not go on once."""
        run, folder = mine
        mark = folder.path / "run.json"
        mark.unlink()
        if damage is not None:
            mark.write_text(damage)
        with pytest.raises(ValueError, match="a run that has lost its mark goes on with --resume"):
            train(run, folder, overwrite=True)
        observer = Listening()
        assert train(run, folder, resume=True, callbacks=[observer]).step == 2
        assert any("had lost its mark of a run (run.json), and has it again" in note for note in observer.notes)
        assert folder.is_run()
        aside = folder.path / "run.damaged-1.json"
        assert (aside.read_text() if aside.exists() else None) == damage

    @pytest.mark.slow
    def test_without_checkpoints_it_says_what_a_mark_holds(self, mine: tuple[RunSettings, RunFolder]) -> None:
        run, folder = mine
        (folder.path / "run.json").unlink()
        for path in folder.checkpoints.iterdir():
            path.rename(folder.path.parent / path.name)
        with pytest.raises(ValueError, match="no checkpoint to know one by: start a new run; or, should it be") as told:
            train(run, folder, resume=True)
        (folder.path / "run.json").write_text(str(told.value).split("put ")[1].split(" into ")[0])
        assert folder.is_run()
        assert train(run, folder, resume=True).step == 2

    def test_a_folder_that_only_looks_like_a_run_gets_no_mark(self, mine: tuple[RunSettings, RunFolder]) -> None:
        run, folder = mine
        (folder.path / "run.json").unlink()
        for state in folder.checkpoints.glob("*/state.json"):
            state.write_text("{}")
        with pytest.raises(ValueError, match="no checkpoint can be read"):
            train(run, folder, resume=True)
        assert not folder.is_run()


class TestResumeOrStart:
    @pytest.mark.slow
    @pytest.mark.skipif(not NIGHT, reason="three runs: make nightly")
    def test_it_starts_what_is_not_there_and_goes_on_with_what_is(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        words = ("train", "demo", "--output", str(tmp_path), "--device", "cpu", "--resume-or-start")
        small = ("--rollout.tasks_per_step", "2", "--training.steps")
        assert "trained 2 steps" in command(capsys, *words, *small, "2")
        assert "trained 3 steps" in command(capsys, *words, *small, "3")
        assert "all 3 steps were trained before" in command(capsys, *words, *small, "3")
        assert len(RunFolder(tmp_path / "demo").read_metrics()) == 3
        text = command(capsys, *words, *small, "4", "--overwrite", status=2)
        assert "--resume-or-start goes on where there is a run, and --overwrite says otherwise" in text

    @pytest.mark.skipif(not NIGHT, reason="a tenth of a minute: make nightly")
    @pytest.mark.slow
    def test_so_does_python(self, tmp_path: Path) -> None:
        changes = {"output": str(tmp_path), "device": "cpu", "rollout.tasks_per_step": 2}
        for steps in (2, 3):
            made = marft.train("demo", {**changes, "training.steps": steps}, resume_or_start=True)
            assert [row["step"] for row in RunFolder(made.path).read_metrics()] == [*range(1, steps + 1)]
        with pytest.raises(ValueError, match="leave out resume and overwrite"):
            marft.train("demo", changes, resume_or_start=True, overwrite=True)

    def test_other_weights_are_heeded_until_there_is_a_checkpoint(self, tmp_path: Path) -> None:
        folder = RunFolder(tmp_path / "run")
        assert not folder.should_resume(begins_with=False)
        folder.path.mkdir()
        folder.write_marker(tmp_path / "old")
        assert folder.should_resume(begins_with=False)
        assert not folder.should_resume(begins_with=True)
        (folder.checkpoints / "step_000010").mkdir(parents=True)
        assert folder.should_resume(begins_with=True)

    def test_a_start_that_was_cut_short_begins_again(self, tmp_path: Path) -> None:
        folder = RunFolder(tmp_path / "run")
        (folder.checkpoints / "start_1").mkdir(parents=True)
        (folder.checkpoints / "step_000010").mkdir()
        folder.write_marker(tmp_path / "old", folder.checkpoints / "start_1")
        assert not folder.should_resume(begins_with=True)


class TestSetAside:
    @pytest.mark.slow
    def test_a_task_stays_set_aside_when_the_run_goes_on(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path, "--training.steps", "1", "--checkpoints.every", "1")
        folder = RunFolder.create(run)
        poison = training.load_training_tasks(run)[0].id
        opened = training.open_rollout_runner

        def losing(run: RunSettings, **more: bool) -> object:
            rollouts = opened(run, **more)
            rollouts.excluded_tasks[poison] = "it ended its workers"
            return rollouts

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "open_rollout_runner", losing)
            state = train(run, folder)
        assert dict(state.excluded_tasks) == {poison: "it ended its workers"}
        longer = run.model_copy(update={"training": run.training.model_copy(update={"steps": 2})})
        state = train(longer, folder, resume=True)
        assert dict(state.excluded_tasks) == {poison: "it ended its workers"}
