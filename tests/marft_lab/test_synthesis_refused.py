"""What a cold start refuses, and who may play it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marft.config import to_toml
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from marft_lab.cli.synthesis import SynthesisOptions, synthesize
from marft_lab.synthesis.overrides import teacher_overrides
from marft_lab.synthesis.teachers import load_teacher
from tests.cold_worlds import RECIPE, cold
from tests.helpers import settings
from tests.marft.cli.test_cli import run as marft
from tests.marft_lab.test_synthesis import bytes_in, made_of


@pytest.mark.parametrize("split", ["validation", "test"])
def test_what_is_held_out_is_no_source(tmp_path: Path, split: str) -> None:
    with pytest.raises(ValueError, match=f"the {split} split is held out"):
        cold(tmp_path, **{"synthesis.split": split})
    with pytest.raises(ValueError, match="no split is called 'tests'"):
        cold(tmp_path, **{"synthesis.split": "tests"})


def test_a_teacher_is_named_and_is_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nobody is named who plays"):
        load_teacher(cold(tmp_path, **{"synthesis.teacher": ""}))
    with pytest.raises(ValueError, match="no run, checkpoint, export or recipe is there"):
        load_teacher(cold(tmp_path, **{"synthesis.teacher": "nowhere"}))
    with pytest.raises(ValueError, match="no run, checkpoint, export or recipe is there; did you mean 'scripts'"):
        load_teacher(cold(tmp_path, **{"synthesis.teacher": "script"}))
    with pytest.raises(ValueError, match="its agents are solver, and those of the recipe actor, reasoner"):
        load_teacher(cold(tmp_path, **{"synthesis.teacher": "demo_single"}))
    silent = cold(tmp_path, environment={"name": "marft.examples.plugins:Guess"})
    with pytest.raises(ValueError, match="has no script"):
        load_teacher(silent)


def test_a_recipe_plays_the_world_of_the_one_that_imitates(tmp_path: Path) -> None:
    run = cold(tmp_path, **{"synthesis.teacher": "demo", "seed": 3})
    teacher = load_teacher(run)
    assert teacher.run.environment.name == "cold_start_world:Sums"
    assert teacher.run.seed == 3
    assert teacher.run.agents[0].sampling.max_new_tokens == 32, "its agents are its own"
    assert teacher.description["kind"] == "recipe"
    assert (
        teacher.description["recipe"]
        != load_teacher(cold(tmp_path, **{"synthesis.teacher": str(RECIPE)})).description["recipe"]
    )


def test_a_filter_is_a_class_of_ones_own_and_one_that_lacks_its_method_is_refused(tmp_path: Path) -> None:
    mine = [{"name": "success"}, {"name": "tests.cold_worlds:FewWords", "most": 1}]
    run = cold(tmp_path, **{"synthesis.filters": mine})
    with pytest.raises(ValueError, match=r"tests.cold_worlds:FewWords: \d+ × says much") as error:
        made_of(run)
    assert "go on with --resume" in str(error.value) or "goes on with --resume" in str(error.value)
    others = cold(tmp_path, **{"synthesis.filters": [mine[0], {**mine[1], "most": 1000}]})
    assert made_of(others, resume=True).episodes > 2, "what was played is sifted anew"
    with pytest.raises(ValueError, match="NoFilter is not a filter: no method def reject"):
        cold(tmp_path, **{"synthesis.filters": [{"name": "tests.cold_worlds:NoFilter"}]})


@pytest.mark.slow
def test_what_was_begun_otherwise_is_not_gone_on_with(tmp_path: Path) -> None:
    before = bytes_in(made_of(cold(tmp_path)).path)
    for changes, what in (
        ({"synthesis.attempts": 2}, "attempts"), ({"synthesis.skill": 0.5}, "teacher"), ({"seed": 1}, "recipe"),
        ({"synthesis.tasks": 5}, "tasks"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"begun with other settings \(.*{what}"):
            made_of(cold(tmp_path, **changes), resume=True)
    assert bytes_in(tmp_path / "cold" / "rows") == before
    made_of(cold(tmp_path, **{"synthesis.attempts": 2}), overwrite=True)
    assert bytes_in(tmp_path / "cold" / "rows") != before


@pytest.mark.slow
def test_held_out_tasks_that_cannot_be_read_are_not_taken_for_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=r"tasks\('test'\) raised .* the disk is gone"):
        made_of(cold(tmp_path, environment={"name": "tests.cold_worlds:Torn"}))
    made_of(cold(tmp_path, environment={"name": "tests.cold_worlds:TrainsAlone"}), overwrite=True)
    assert sorted(caplog.messages) == [
        f"the {split} split has no tasks: nothing that is kept was compared with it" for split in ("test", "validation")
    ]


@pytest.mark.slow
def test_a_team_that_was_trained_teaches_with_the_weights_of_its_checkpoint(tmp_path: Path) -> None:
    learned = settings("tiny", tmp_path, "--name", "learned", "--training.steps", "1")
    train(learned, RunFolder(tmp_path / "learned"))
    anything = {"synthesis": {"teacher": str(tmp_path / "learned"), "tasks": 4, "attempts": 1,
                              "filters": [{"name": "success", "require_success": False}]}}  # fmt: skip
    made = made_of(settings("tiny", tmp_path, "--name", "rows", **anything))
    assert made.episodes
    told = json.loads((made.path / "manifest.json").read_text())["teacher"]
    assert (told["kind"], told["name"], told["checkpoint"]) == ("checkpoint", "learned", "step_000001")
    anything["synthesis"]["teacher"] += "/checkpoints/step_000001"
    again = made_of(settings("tiny", tmp_path, "--name", "again", **anything))
    assert bytes_in(made.path)["actor.jsonl"] == bytes_in(again.path)["actor.jsonl"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no run at"):
        load_teacher(settings("tiny", tmp_path, synthesis={"teacher": str(tmp_path / "empty")}))


@pytest.mark.slow
def test_one_command_does_all_of_it_and_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "team.toml"
    short = {"training.steps": 1, "rollout.tasks_per_step": 2, "rollout.samples_per_task": 2, "synthesis.teacher": "",
             "algorithm.critic.warmup_steps": 0, "sft.epochs": 1}  # fmt: skip
    recipe.write_text(to_toml(cold(tmp_path, name="team", **short)))
    text = marft(capsys, "synthesize", str(recipe), "--teacher", "scripts", "--train")
    assert "duplicates" in text
    assert "trained 1 steps" in text
    begun = (tmp_path / "team-sft" / "run.json").read_text()
    assert (
        RunFolder(tmp_path / "team")
        .initial_checkpoint()
        .endswith(str(RunFolder(tmp_path / "team-sft").saved_steps()[-1]))
    )
    text = marft(capsys, "synthesize", str(recipe), "--teacher", "scripts", "--train")
    assert "all 1 steps were trained before" in text
    assert (tmp_path / "team-sft" / "run.json").read_text() == begun
    assert "leave out --resume" in marft(capsys, "synthesize", str(recipe), "--train", "--resume", status=2)
    assert "go on with it" in marft(capsys, "synthesize", str(recipe), "--teacher", "scripts", status=2)
    told = marft(capsys, "synthesize", str(tmp_path / "team-rows"), "--resume", "--json")
    assert json.loads(told)["rows"]["actor"] > 2


def test_a_run_that_began_with_something_else_is_no_cold_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "team.toml"
    recipe.write_text(to_toml(run := cold(tmp_path, name="team")))
    RunFolder.create(run)
    told = marft(capsys, "synthesize", str(recipe), "--teacher", "scripts", "--train", status=2)
    assert "is a run that began with something else than what is imitated here" in " ".join(told.split())
    assert not (tmp_path / "team-rows").exists()


def test_a_folder_that_is_called_like_the_scripts_is_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scripts").mkdir()
    monkeypatch.chdir(tmp_path)
    assert teacher_overrides("scripts") == {"synthesis.teacher": "scripts"}
    assert teacher_overrides("./scripts") == {"synthesis.teacher": str(tmp_path / "scripts")}


def test_who_is_not_there_is_said_before_what_is_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo-rows").mkdir(parents=True)
    (tmp_path / "runs" / "demo-rows" / "config.toml").write_text("")
    with pytest.raises(ValueError, match="--teacher runs/nope: no run, checkpoint, export or recipe is there"):
        synthesize(Path("demo"), (), SynthesisOptions("runs/nope"))
