"""What a session of evaluations goes by: what it says before it plays, and what makes another question of one."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from marft.common.types import Task
from marft.config import RunSettings
from marft.config.bundled import bundled_models
from marft.evaluation.scenarios import freeze_scenarios
from marft.evaluation.session import EvaluationPlan, StorageOptions, evaluate_checkpoints
from marft.models.digest_cache import list_model_files, load_digests
from marft.rollout import local_runner as rollouts_here
from marft.runs import lock
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.helpers import settings
from tests.marft.evaluation.test_kept_evaluations import Lengths, found, lengths, plays, said  # noqa: F401
from tests.nights import BY_NIGHT
from tests.satellites import NEEDS_SERVE


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where models are remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    "kept",
    ["nothing", *(pytest.param(one, marks=BY_NIGHT) for one in ("all", "all, by models that are loaded")), "a part"],
)
def test_as_many_episodes_as_were_announced_are_told_of_one_by_one(tmp_path: Path, cache: Path, kept: str) -> None:
    run, folder, told = lengths(tmp_path), tmp_path / "evaluations", list[int | None]()
    if kept != "nothing":
        found(run, folder, shuffled=kept != "a part")
    if kept == "all, by models that are loaded":
        shutil.rmtree(cache)

    def advance(total: int | None = None) -> None:
        told.append(total)

    keeping = StorageOptions(folder)
    evaluate_checkpoints(
        run, None, EvaluationPlan(["base"], ("sampled",), 5, shuffled_too=True, attempts=2), advance, storage=keeping
    )
    assert told == [20, *[None] * 20]


def test_models_are_checked_before_anything_is_played_and_where_all_is_kept(
    tmp_path: Path,
    plays: list[int],  # noqa: F811
) -> None:
    run, folder, seen = lengths(tmp_path), tmp_path / "evaluations", list[Mapping[str, str]]()

    def refuse(digests: Mapping[str, str]) -> None:
        seen.append(digests)
        raise ValueError("another base")

    for first in (True, False):
        with pytest.raises(ValueError, match="another base"):
            found(run, folder, check=refuse)
        assert plays == ([] if first else [4, 4, 2])
        found(run, folder)
    assert seen[0] == seen[1]
    assert list(seen[0]) == ["models.base"]


def test_what_a_model_is_known_by_is_not_remembered_for_files_that_came_while_it_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Path(shutil.copytree(bundled_models()["tiny"], tmp_path / "model"))
    for path in model.iterdir():
        os.utime(path, (1, 1))
    open_rollout_runner = rollouts_here.open_rollout_runner

    def slowly(run: RunSettings) -> Any:
        rollouts = open_rollout_runner(run)
        os.utime(model / "config.json", (2, 2))
        return rollouts

    monkeypatch.setattr(rollouts_here, "open_rollout_runner", slowly)
    run = lengths(tmp_path, models={"base": {"path": str(model)}})
    found(run, None, attempts=1)
    assert load_digests(run, list_model_files(run)) is None
    os.utime(model / "config.json", (1, 1))
    assert load_digests(run, list_model_files(run)) is None, (
        "nor for those that were there before, where they come back"
    )
    os.utime(model / "config.json", (2, 2))
    found(run, None, attempts=1)
    assert load_digests(run, list_model_files(run)) is not None


@pytest.mark.parametrize(("number", "answers"), [("EROFS", True), ("EACCES", True), ("ENOSPC", False)])
def test_what_is_kept_is_read_where_nothing_may_be_written_and_other_errors_are_not_swallowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, number: str, answers: bool
) -> None:
    """A full disk takes nothing for now; that is no reason to say that a copy is needed."""
    run, folder = lengths(tmp_path), tmp_path / "evaluations"
    (first,) = found(run, folder, attempts=1)
    shutil.rmtree(cache)

    def held(*_: object) -> None:
        raise OSError(getattr(errno, number), "no")

    monkeypatch.setattr(lock, "lock_file", held)
    if not answers:
        with pytest.raises(OSError, match="no"):
            found(run, folder, attempts=1)
        return
    assert said(found(run, folder, attempts=1)[0]) == said(first)
    with pytest.raises(ValueError, match="what is played cannot be kept there"):
        found(run, folder, attempts=2)


OTHERWISE: dict[str, tuple[str, ...]] = {
    "how many are played at once": ("--evaluation.save_every", "5"),
    "episodes that live together": ("--rollout.max_concurrent_episodes", "3"),
    "how long an episode may be": ("--rollout.max_steps", "3"),
    "what passes between agents": ("--channel", "{ name = 'truncated' }"),
    "the engine": ("--engine.max_batch_size", "3"),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_whatever_decides_what_is_played_makes_another_question(
    tmp_path: Path,
    plays: list[int],  # noqa: F811
    what: str,
) -> None:
    folder = tmp_path / "evaluations"
    (first,) = found(lengths(tmp_path), folder, attempts=1)
    plays.clear()
    (second,) = found(lengths(tmp_path, *OTHERWISE[what]), folder, attempts=1)
    assert sum(plays) == 5
    assert first.key != second.key


def test_other_tasks_of_the_same_names_are_played(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plays: list[int],  # noqa: F811
) -> None:
    run, folder = lengths(tmp_path), tmp_path / "evaluations"
    found(run, folder, attempts=1)
    plays.clear()
    of_before = Lengths.tasks

    def tasks(self: Lengths, split: str) -> list[Task]:
        return [Task(task.id, f"{task.prompt} Please.", task.data) for task in of_before(self, split)]

    monkeypatch.setattr(Lengths, "tasks", tasks)
    found(run, folder, attempts=1)
    assert sum(plays) == 5


def test_an_environment_whose_code_was_changed_is_played(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plays: list[int],  # noqa: F811
) -> None:
    module = tmp_path / "code" / "lengths_of_theirs.py"
    module.parent.mkdir()
    module.write_text(
        "from tests.marft.evaluation.test_kept_evaluations import Lengths\n\n\nclass Theirs(Lengths): ...\n"
    )
    monkeypatch.syspath_prepend(module.parent)
    run, folder = settings("tiny", tmp_path, environment={"name": "lengths_of_theirs:Theirs"}), tmp_path / "evaluations"
    found(run, folder, attempts=1)
    plays.clear()
    found(run, folder, attempts=1)
    assert not plays
    module.write_text(f"{module.read_text()}    # which pays otherwise\n")
    found(run, folder, attempts=1)
    assert sum(plays) == 5
    del sys.modules["lengths_of_theirs"]


def test_each_mode_with_and_without_messages_of_others_is_a_question_of_its_own(tmp_path: Path) -> None:
    plan = EvaluationPlan(["base"], ("sampled", "greedy"), 2, shuffled_too=True)
    results = evaluate_checkpoints(lengths(tmp_path), None, plan, lambda _=None: None)
    assert len({one.key for one in results}) == 4


def test_scenarios_are_played_under_their_own_seed(tmp_path: Path) -> None:
    run, other = lengths(tmp_path), lengths(tmp_path, "--seed", "7")
    smoke = freeze_scenarios(other, "smoke", "test", 5, "", ("sampled",), 2)
    (under_it,) = found(run, None, scenarios=smoke)
    assert under_it.rewards == found(other, None)[0].rewards != found(run, None)[0].rewards


@BY_NIGHT
@pytest.mark.slow
def test_each_checkpoint_plays_with_its_own_weights_whatever_was_in_place_and_whatever_it_is_called(
    tmp_path: Path,
) -> None:
    run = lengths(tmp_path)
    train(run, folder := RunFolder.create(run))

    def scores(*names: str) -> list[list[list[float]]]:
        """The log-probs of what was sampled, by checkpoint."""
        keeping = StorageOptions(folder.evaluations)
        evaluate_checkpoints(run, folder, EvaluationPlan(names, ("sampled",), 3), lambda _=None: None, storage=keeping)
        files = [read_episodes(folder.evaluations / f"{name}-sampled.parquet") for name in names]
        return [[action.log_probs.tolist() for one in episodes for action in one.actions] for episodes in files]

    first, second, base = scores("step_000001", "step_000002", "base")
    shutil.rmtree(folder.evaluations)
    assert scores("base") == [base]
    assert first != second != base != first
    scores("step_000002")
    other = lengths(tmp_path / "other", "--algorithm.optimizer.learning_rate", "2e-2")
    train(other, elsewhere := RunFolder.create(other))
    shutil.rmtree(folder.path / "checkpoints")
    shutil.copytree(elsewhere.path / "checkpoints", folder.path / "checkpoints")
    assert scores("step_000002") != [second], "other weights of that name"


def test_a_team_that_passes_no_messages_on_has_none_to_shuffle(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path, team={"organization": "turns"})
    with pytest.raises(ValueError, match="messages cannot be shuffled: the team passes none on"):
        found(run, tmp_path / "evaluations", shuffled=True)


@NEEDS_SERVE
def test_messages_of_a_program_cannot_be_shuffled(tmp_path: Path) -> None:
    run = settings(
        "tiny", tmp_path, team={"organization": "program", "call": "tests.marft_lab.test_worth_command:solve"}
    )
    with pytest.raises(ValueError, match="messages cannot be shuffled: the team is a program"):
        found(run, tmp_path / "evaluations", shuffled=True)
    assert not (tmp_path / "evaluations").exists()
