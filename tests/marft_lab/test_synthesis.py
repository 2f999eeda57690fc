"""Cold starts: what a teacher plays becomes rows, the same ones whenever they are made, and they teach what was played."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marft.agents.game import Attempt
from marft.common import atomic
from marft.common.types import Episode
from marft.config import RunSettings
from marft.envs.tasks import read_tasks
from marft.models.tokenizer_format import load_tokenizer_formats
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft_lab.scripted_team import ScriptedTeam
from marft_lab.synthesis import rows as manifest
from marft_lab.synthesis.rows import SynthesisResult
from marft_lab.synthesis.session import synthesize
from marft_serve.traces.settings import SftSettings
from marft_serve.traces.types import SkipCounter
from marft_serve.traces.warm_start import load_imitation_data
from tests.cold_worlds import cold

DICE = {"environment": {"name": "tests.cold_worlds:Dice"}, "synthesis.attempts": 1}


def made_of(run: RunSettings, **options: Any) -> SynthesisResult:
    return synthesize(run, RunFolder(Path(run.output) / run.name), **options)


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def rows_in(made: SynthesisResult) -> list[dict[str, Any]]:
    files = sorted(made.path.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def test_rows_say_where_they_are_from_and_the_manifest_what_was_left_out(tmp_path: Path) -> None:
    run = cold(tmp_path)
    made, told = made_of(run), json.loads((tmp_path / "cold" / "rows" / "manifest.json").read_text())
    funnel = told["funnel"]
    assert [part["name"] for part in funnel] == [
        "success", "handoffs", "duplicates", "leakage", "replayed", "max_per_task"
    ]  # fmt: skip
    assert funnel[0]["came"] == 18
    assert all(part["kept"] == part["came"] - sum(part["dropped"].values()) for part in funnel)
    assert all(after["came"] == before["kept"] for before, after in zip(funnel, funnel[1:], strict=False))
    assert funnel[0]["dropped"]["not solved"] > 0
    assert funnel[2]["dropped"]["says what another one says"] > 0
    assert told["episodes"] == made.episodes == funnel[-1]["kept"] > 2
    assert told["rows"] == made.rows == {"actor": made.episodes, "reasoner": made.episodes}
    train = {task.id for task in read_tasks(run.environment, "train")}
    for row in rows_in(made):
        origin = row["from"]
        assert origin["task"] == row["task"] in train
        assert (origin["split"], origin["seed"], origin["success"], origin["reward"]) == ("train", 0, True, 1.0)
        assert origin["role"] == row["agent"] == origin["action"].split("/")[1]
        assert origin["episode"] == f"{row['task']} #{origin['attempt']}"
        assert origin["filters"] == [part["name"] for part in funnel]
        assert origin["teacher"] == told["teacher"]
        assert set(told["teacher"]) == {"kind", "name", "skill", "recipe", "version"}
        assert row["completion"][0]["role"] == "assistant"
        assert row["prompt"][0]["content"].startswith(f"You are the {row['agent']}")


@pytest.mark.slow
def test_the_same_is_made_again_to_the_byte(tmp_path: Path) -> None:
    one, other = (made_of(cold(tmp_path / name)) for name in ("one", "other"))
    assert bytes_in(one.path) == bytes_in(other.path)
    another = made_of(cold(tmp_path / "seed", seed=1))
    assert bytes_in(another.path) != bytes_in(one.path)


@pytest.mark.slow
def test_what_was_stopped_goes_on_and_plays_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = made_of(cold(tmp_path / "whole"))
    run, played = cold(tmp_path / "stopped"), list[str]()
    original = ScriptedTeam.play_attempts

    def counted(team: ScriptedTeam, attempts: Sequence[Attempt]) -> list[Episode]:
        if len(played) == 6:
            played.append("stopped")
            raise KeyboardInterrupt
        played.extend(one.task.id for one in attempts)
        return list(original(team, attempts))

    monkeypatch.setattr(ScriptedTeam, "play_attempts", counted)
    with pytest.raises(KeyboardInterrupt):
        made_of(run)
    folder = tmp_path / "stopped" / "cold"
    assert not (folder / "rows").exists()
    assert len(list(folder.glob("episodes/*.parquet"))) == 1
    with pytest.raises(ValueError, match="go on with it"):
        made_of(run)
    again = made_of(run, resume=True)
    assert bytes_in(again.path) == bytes_in(whole.path)
    assert len(played) == 6 + 1 + 12
    (folder / "episodes" / "step_000002.parquet").write_bytes(b"damaged")
    assert bytes_in(made_of(run, resume=True).path) == bytes_in(whole.path)
    assert len(played) == 6 + 1 + 12 + 6
    assert any("damaged" in text for text in caplog.messages)


def test_what_could_not_be_scored_is_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = made_of(cold(tmp_path / "whole"))
    original, down, played = ScriptedTeam.play_attempts, [True], list[str]()

    def attempt(team: ScriptedTeam, attempts: Sequence[Attempt]) -> list[Episode]:
        played.extend(one.task.id for one in attempts)
        episodes = list(original(team, attempts))
        if down:
            down.clear()
            episodes[1] = replace(episodes[1], status="failed", error="nobody answered")
        return episodes

    monkeypatch.setattr(ScriptedTeam, "play_attempts", attempt)
    run = cold(tmp_path / "failed")
    made_of(run)
    first = len(played)
    again = made_of(run, resume=True)
    assert played[first:] == played[1:2]
    assert bytes_in(again.path) == bytes_in(whole.path)


def test_rows_are_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, before = cold(tmp_path), bytes_in(made_of(cold(tmp_path)).path)
    monkeypatch.setattr(manifest.json, "dumps", _cut_short(3))
    with pytest.raises(OSError, match="no space"):
        made_of(run, resume=True)
    monkeypatch.undo()
    assert bytes_in(tmp_path / "cold" / "rows") == before
    assert not list((tmp_path / "cold").glob(f"{atomic.TEMP_PREFIX}*"))


def _cut_short(count: int) -> Any:
    original, left = json.dumps, [count]

    def dumps(*arguments: Any, **options: Any) -> str:
        left[0] -= 1
        if left[0] == 0:
            raise OSError("no space")
        return original(*arguments, **options)

    return dumps


def test_what_is_imitated_is_what_was_played_token_for_token(tmp_path: Path) -> None:
    made = made_of(cold(tmp_path))
    kept = {row["from"]["episode"] for row in rows_in(made)}
    played = [one for path in sorted((tmp_path / "cold" / "episodes").iterdir()) for one in read_episodes(path)]
    actions = [a for one in played if f"{one.task.id} #{one.sample}" in kept for a in one.actions]
    run = cold(tmp_path, **{"sft.traces": [str(tmp_path / "cold")], "sft.held_out_fraction": 0.0})
    tally = SkipCounter()
    lessons = load_imitation_data(run, load_tokenizer_formats(run), tally)
    assert not tally.skipped
    assert len(lessons.train) == len(actions) == 2 * made.episodes
    for sample, action in zip(lessons.train, actions, strict=True):
        assert sample.action.agent == action.agent
        assert np.array_equal(sample.action.prompt, action.prompt)
        assert np.array_equal(sample.action.tokens, action.tokens)


@pytest.mark.slow
def test_prompts_of_rows_are_what_is_learned_from_where_a_recipe_says_so(tmp_path: Path) -> None:
    made = made_of(cold(tmp_path))
    run = cold(tmp_path, **{"sft.traces": [str(made.path)], "sft.held_out_fraction": 0.0})
    by_prompt = run.model_copy(update={"sft": SftSettings.from_run(run).model_copy(update={"prompts": "trace"})})
    told, again = (
        load_imitation_data(one, load_tokenizer_formats(one), SkipCounter()).train for one in (run, by_prompt)
    )
    assert len(told) == len(again)
    for one, other in zip(told, again, strict=True):
        assert np.array_equal(one.action.prompt, other.action.prompt)
        assert np.array_equal(one.action.tokens, other.action.tokens)


def test_a_session_that_is_random_is_the_same_when_it_is_told_again_under_any_seed(tmp_path: Path) -> None:
    made = made_of(cold(tmp_path, **DICE))
    assert made.episodes == 6
    run = cold(tmp_path, **DICE, **{"sft.traces": [str(made.path)], "seed": 5, "sft.held_out_fraction": 0.0})
    lessons = load_imitation_data(run, load_tokenizer_formats(run), SkipCounter())
    tokenizer = load_tokenizer_formats(run)["base"].tokenizer
    for sample in lessons.train:
        shown, said = (tokenizer.decode(ids.tolist()) for ids in (sample.action.prompt, sample.action.tokens[:-1]))
        assert f"It is {said}" in shown


def test_a_balance_is_by_a_field_of_the_tasks(tmp_path: Path) -> None:
    changes = {**DICE, "synthesis.tasks": 5, "synthesis.balance_by": "level"}  # levels 0 1 0 1 0
    made = made_of(cold(tmp_path, **changes))
    assert made.episodes == 4
    assert made.stages[-1].dropped == {"more of its kind of task than of the rarest": 1}
    with pytest.raises(ValueError, match="no field 'levels'"):
        made_of(cold(tmp_path / "other", **{**changes, "synthesis.balance_by": "levels"}))
