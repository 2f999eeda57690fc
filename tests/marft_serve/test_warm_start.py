"""A warm start is a run: it stops and goes on to the bit, training goes on from it, and what is wrong is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from marft.config import RunSettings, to_toml
from marft.envs.tasks import read_tasks
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.runs.state import verify
from marft.trainer.train import train
from marft_serve.traces.warm_start import warm_start
from tests.helpers import settings
from tests.marft.cli.test_cli import run as marft
from tests.marft.runs.test_resume import StopAfter
from tests.nights import BY_NIGHT
from tests.runs import Listening
from tests.tracing import write

STEPS = 4


def traces(tmp_path: Path, count: int = 10) -> Path:
    tasks = read_tasks(settings("tiny", tmp_path).environment, "train")[:count]
    lines = [
        {
            "messages": [
                {"role": "user", "content": task.prompt},
                {"role": "assistant", "name": "Reasoner", "content": f"Begin with {number}."},
                {"role": "assistant", "name": "solver", "content": f"\\boxed{{{task.data['entry']['answer']}}}"},
            ]
        }
        for number, task in enumerate(tasks)
    ]
    return write(tmp_path / "traces.jsonl", lines)


def run_of(tmp_path: Path, *overrides: str) -> RunSettings:
    return settings(
        "tiny", tmp_path, "--sft.traces", json.dumps([str(traces(tmp_path))]), "--sft.roles", "{ solver = 'actor' }",
        "--sft.epochs", "2", "--sft.batch_tokens", "600", "--sft.eval_every", "2", "--checkpoints.every", "2",
        "--sft.held_out_fraction", "0.2", "--sft.learning_rate", "0.01", *overrides,
    )  # fmt: skip


@pytest.mark.slow
def test_stopping_and_going_on_changes_nothing(tmp_path: Path) -> None:
    folders = []
    for name, stops in (("straight", []), ("stopped", [1])):
        run = run_of(tmp_path, "--name", name)
        folder = RunFolder(tmp_path / name)
        for stop in stops:
            assert warm_start(run, folder, callbacks=[StopAfter(stop)]).state.step == stop
        done = warm_start(run, folder, resume=bool(stops))
        assert done.state.step == done.steps == STEPS
        folders.append(folder)
    straight, stopped = (folder.checkpoints / f"step_{STEPS:06d}" for folder in folders)
    names = sorted(str(path.relative_to(straight)) for path in straight.rglob("*.safetensors"))
    assert names == [
        "optimizer.safetensors",
        *(f"policies/{p}/adapter_model.safetensors" for p in ("actor", "reasoner")),
    ]
    for name in names:
        mine, theirs = load_file(straight / name), load_file(stopped / name)
        assert mine.keys() == theirs.keys()
        assert all(mine[key].tobytes() == theirs[key].tobytes() for key in mine), name
    assert verify(straight) == verify(stopped)
    rows = [[{k: v for k, v in row.items() if "second" not in k} for row in f.read_metrics()] for f in folders]
    assert rows[0] == rows[1]
    assert rows[0][-1]["sft/held_out_loss"] < rows[0][1]["sft/held_out_loss"]
    assert rows[0][-1]["sft/loss"] < rows[0][0]["sft/loss"]


@pytest.mark.slow
def test_training_starts_from_it_and_neither_goes_on_as_the_other(tmp_path: Path) -> None:
    run, folder = run_of(tmp_path), RunFolder(tmp_path / "test")
    warm_start(run, folder)
    checkpoint = folder.checkpoints / f"step_{STEPS:06d}"
    with pytest.raises(ValueError, match="is a warm start: it goes on with  marft sft"):
        train(run, folder, resume=True)
    first = json.loads((tmp_path / "traces.jsonl").read_text().splitlines()[0])
    write(tmp_path / "traces.jsonl", [first] * 2)
    with pytest.raises(ValueError, match="turns of the traces are not those"):
        warm_start(run, folder, resume=True)
    other, listening = RunFolder(tmp_path / "trained"), Listening()
    trained = settings("tiny", tmp_path, "--name", "trained", "--training.steps", "1")
    train(trained, other, start_from=checkpoint, callbacks=[listening])
    begun = load_file(other.checkpoints / "step_000000" / "policies" / "actor" / "adapter_model.safetensors")
    warm = load_file(checkpoint / "policies" / "actor" / "adapter_model.safetensors")
    assert all(begun[key].tobytes() == warm[key].tobytes() for key in warm)
    assert any("no critic that fits" in note for note in listening.notes)
    with pytest.raises(ValueError, match="learns by rewards: it goes on with  marft train"):
        warm_start(run_of(tmp_path), other, resume=True)


def test_traces_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="need the ids that were sampled and their log-probabilities") as error:
        train(settings("tiny", tmp_path), RunFolder(tmp_path / "test"), start_from=traces(tmp_path))
    assert "marft sft RECIPE --traces" in str(error.value)
    assert "marft score RECIPE --traces" in str(error.value)
    assert not (tmp_path / "test").exists()


def test_without_traces_there_is_nothing_to_imitate(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no file of traces is named"):
        warm_start(settings("tiny", tmp_path), RunFolder(tmp_path / "test"))


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "learned"), [("1e-12", False), ("0.01", True)])
def test_sft_says_whether_the_held_out_loss_fell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rate: str, learned: bool
) -> None:
    recipe = tmp_path / "team.toml"
    recipe.write_text(to_toml(run_of(tmp_path, "--sft.learning_rate", rate)), encoding="utf-8")
    text = marft(capsys, "sft", str(recipe), "--json")
    end = json.loads(text[text.index('{"event": "done"') :])
    assert end["learned"] is learned
    assert (end["held_out"] < end["held_out_before"]) is learned
    text = marft(capsys, "sft", str(recipe), "--overwrite")
    assert ("the held-out loss did not fall: raise sft.epochs or sft.learning_rate" in text) is not learned


@BY_NIGHT
@pytest.mark.slow
def test_the_commands_work_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, path = tmp_path / "team.toml", traces(tmp_path)
    recipe.write_text(to_toml(settings("tiny", tmp_path, rewards=[
        {"name": "outcome"}, {"name": "format", "pattern": "boxed", "agents": ["actor"], "weight": 0.5}])))  # fmt: skip
    told = (str(recipe), "--traces", str(path), "--name", "told")
    assert "the recipe has no agent 'solver'" in marft(capsys, "score", *told)
    text = marft(capsys, "score", *told, "--overwrite", "--role", "solver=actor", "--role", "nobody=actor")
    assert "10 episodes scored, 0 could not be accuracy 100.0%" in text
    assert "outcome +1.000" in text
    assert "format +0.000 +0.500" in text
    assert "no turn is by 'nobody'" in text
    (first, *_) = read_episodes(RunFolder(tmp_path / "told").find_recorded(0))
    assert (first.stream, first.total_reward, [a.agent for a in first.actions]) == (
        "traces",
        1.0,
        ["reasoner", "actor"],
    )
    assert "Begin with 0." in marft(capsys, "show", str(tmp_path / "told"), "--step", "1")
    assert "wrote" in marft(capsys, "report", str(tmp_path / "told"))
    assert "did you mean 'actor'?" in marft(capsys, "sft", *told, "--role", "solver=actr", status=2)
    assert "there is no such file" in marft(capsys, "score", str(recipe), "--traces", "nowhere.jsonl", status=2)
    small = ("--sft.batch_tokens", "2000", "--role", "solver=actor", "--evaluation.tasks", "2")
    text = marft(capsys, "sft", str(recipe), "--traces", str(path), *small)
    assert "held-out loss" in text
    folder = tmp_path / "test-sft"
    assert f"marft eval {folder}" in text
    assert (folder / "report.html").is_file()
    text = marft(capsys, "sft", str(folder), "--resume")
    assert "; held-out loss " in text
    assert "last" in marft(capsys, "eval", str(folder), "--mode", "greedy") or (folder / "evaluations").is_dir()
    text = marft(capsys, "train", str(recipe), "--init-from", str(path), "--name", "no", status=2)
    assert "ratios of policies" in text
