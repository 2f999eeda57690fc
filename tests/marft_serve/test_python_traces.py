"""Traces from Python: what the commands do, with the same words, and weights to begin with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import marft
import marft_serve
from tests.helpers import settings
from tests.marft_serve.test_warm_start import STEPS, run_of, traces
from tests.nights import BY_NIGHT

ROLES = {"solver": "actor"}


def policy(checkpoint: Path) -> dict[str, Any]:
    return dict(load_file(checkpoint / "policies" / "actor" / "adapter_model.safetensors"))


def recipe(tmp_path: Path, **more: Any) -> marft.RunSettings:
    """That of the tests of warm starts, without its traces."""
    small = {"sft": {"epochs": 2, "batch_tokens": 600, "held_out_fraction": 0.2, "learning_rate": 0.01}}
    return marft.load_recipe(
        settings("tiny", tmp_path, "--checkpoints.every", "2", "--checkpoints.keep_last", "9"), small, **more
    )


def test_scores_are_what_the_command_shows_and_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scores = marft_serve.score(recipe(tmp_path), traces(tmp_path), roles=ROLES | {"nobody": "actor"})
    assert any(re.fullmatch(r"left out: .*no turn is by 'nobody'.*", text) for text in caplog.messages)
    assert (scores.episodes, scores.dropped, scores.accuracy) == (10, 0, 1.0)
    kept = marft.load_run(tmp_path / "test-score")
    assert [action.agent for action in kept.episodes()[0].actions] == ["reasoner", "actor"]


@pytest.mark.slow
@BY_NIGHT
def test_a_warm_start_begins_with_other_weights_goes_on_and_is_trained_from(tmp_path: Path) -> None:
    path = traces(tmp_path)
    first = marft_serve.sft(recipe(tmp_path), [path], roles=ROLES)
    assert (first.path.name, first.step) == ("test-sft", STEPS)
    again = marft_serve.sft(recipe(tmp_path), [path], {"name": "again"}, roles=ROLES, start_from=first.checkpoint())
    assert again.path.name == "again"
    begun, ended = policy(again.checkpoint("step_000000")), policy(first.checkpoint())
    assert all(begun[name].tobytes() == ended[name].tobytes() for name in ended)
    assert again.metrics[0]["sft/loss"] < first.metrics[0]["sft/loss"]
    assert any((policy(again.checkpoint())[name] != begun[name]).any() for name in begun)
    longer = marft_serve.sft(again, resume=True, sft={"epochs": 2})
    assert (longer.path, longer.step) == (again.path, STEPS)
    trained = marft.train(recipe(tmp_path), {"training.steps": 1, "name": "t"}, start_from=again.checkpoint())
    assert all(
        (policy(trained.checkpoint("step_000000"))[name] == policy(again.checkpoint())[name]).all() for name in begun
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"traces": "nowhere.jsonl"}, "nowhere.jsonl: there is no such file"),
        ({"traces": 3}, "traces are named by their files, texts or Paths, and this is 3"),
        ({"traces": [""]}, "traces are named by their files"),
        ({"roles": {"solver": "actr"}}, "did you mean 'actor'?"),
        ({"roles": ["solver=actor"]}, "roles is a table of names"),
        ({"start_from": ""}, "start_from: a checkpoint is named by its folder"),
        ({"start_from": "traces.jsonl"}, "Traces to imitate are given with --traces"),
        ({"resume": True}, "test-sft"),
        ({"callbacks": [print]}, "callbacks are objects of a class that derives from marft.Callback"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path: Any = options.pop("traces", traces(tmp_path))
    with pytest.raises(ValueError, match=re.escape(message)):
        marft_serve.sft(recipe(tmp_path), path, **{"roles": ROLES, **options})
    assert not (tmp_path / "test-sft").exists()


def test_without_traces_there_is_nothing_to_do(tmp_path: Path) -> None:
    for command in (marft_serve.score, marft_serve.sft):
        with pytest.raises(ValueError, match="no file of traces is named"):
            command(recipe(tmp_path))


def test_the_recipe_can_name_them(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    assert marft_serve.score(run, overwrite=True).episodes == 10
