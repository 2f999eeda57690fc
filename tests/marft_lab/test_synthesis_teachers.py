"""Teachers play as they are known: with the weights that they learned, and told what they were told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marft.rollout import local_runner
from marft_lab.synthesis.settings import SynthesisSettings
from marft_lab.synthesis.teachers import Teacher, build_attempts, episode_identity, load_teacher, open_teacher
from tests.cold_worlds import cold


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What whoever plays is asked for, in order; no model is loaded."""
    heard = list[tuple[str, Any]]()

    @contextmanager
    def opened(_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(
            models=SimpleNamespace(compute_digests=lambda: {"base": "known"}),
            load_checkpoint=lambda path: heard.append(("loaded", path)),
            publish=lambda version: heard.append(("published", version)),
            play=lambda attempts: heard.append(("played", attempts)),
        )

    monkeypatch.setattr(local_runner, "open_rollout_runner", opened)
    return heard


def test_a_team_that_learned_plays_with_its_weights_and_is_told_what_it_learned(
    tmp_path: Path, heard: list[tuple[str, Any]]
) -> None:
    teacher = Teacher(cold(tmp_path), {}, weights=Path("kept"))
    with open_teacher(teacher) as play:
        assert heard == [("loaded", Path("kept"))]
        play([])
    assert heard[1:] == [("published", 0), ("played", [])]


def test_a_recipe_plays_as_it_says(tmp_path: Path, heard: list[tuple[str, Any]]) -> None:
    with open_teacher(Teacher(cold(tmp_path), {})) as play:
        play([])
    assert heard == [("loaded", None), ("published", 0), ("played", [])]


def test_models_that_a_teacher_did_not_learn_on_are_refused_before_anything_is_loaded(
    tmp_path: Path, heard: list[tuple[str, Any]]
) -> None:
    def check(digests: object) -> None:
        raise ValueError(f"other models: {digests}")

    teacher = Teacher(cold(tmp_path), {}, weights=Path("kept"), check=check)
    with pytest.raises(ValueError, match=r"other models: \{'base': 'known'\}"), open_teacher(teacher):
        pass
    assert not heard


def test_what_pays_is_that_of_the_recipe_that_imitates(tmp_path: Path) -> None:
    run = cold(tmp_path, **{"synthesis.teacher": "demo", "rewards": [{"name": "trajectory", "weight": 2.0}]})
    assert (
        [one.model_dump() for one in load_teacher(run).run.rewards] == [one.model_dump() for one in run.rewards] != []
    )


def test_what_decides_what_is_played_is_known_of_whoever_goes_on(tmp_path: Path) -> None:
    run = cold(tmp_path)
    teacher, attempts = load_teacher(run), build_attempts(run)
    begun = episode_identity(run, teacher, attempts)
    for changes, what in (({"attempts": 2}, "attempts"), ({"save_every": 3}, "save_every")):
        other = run.model_copy(update={"synthesis": SynthesisSettings.from_run(run).model_copy(update=changes)})
        after = episode_identity(other, teacher, attempts)
        assert [key for key in begun if begun[key] != after[key]] == [what]
    assert episode_identity(run, replace(teacher, description={}), attempts)["teacher"] != begun["teacher"]
