"""Runs that were evaluated on different tasks: which they are, and which can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from marft.evaluation.checkpoint_results import compare_runs
from marft.evaluation.shared_tasks import describe_different_tasks
from marft.runs.run_folder import RunFolder
from tests.helpers import settings, write_evaluation
from tests.marft.cli.test_cli import run
from tests.marft.evaluation.test_unknown_success import saved


def evaluated(
    tmp_path: Path, name: str, tasks: int, digest: str = "d", checkpoints: Sequence[str] = ("base", "last")
) -> RunFolder:
    """A run with evaluations on tasks whose digests begin with the given text."""
    folder = RunFolder.create(settings("tiny", tmp_path, name=name))
    for number, checkpoint in enumerate(checkpoints):
        evaluation = saved(checkpoint, [float(number)] * tasks)
        digests = {f"t{n}": f"{digest}{n}" for n in range(tasks)} if digest else {}
        write_evaluation(folder, {**evaluation, "prompts": digests}, f"{checkpoint}-sampled")
    return folder


def test_of_runs_on_the_same_tasks_nothing_is_said(tmp_path: Path) -> None:
    assert describe_different_tasks([evaluated(tmp_path, name, 4) for name in "ab"]) == ""


def test_different_tasks_are_told_with_the_runs_that_are_comparable(tmp_path: Path) -> None:
    folders = [evaluated(tmp_path, "a", 4), evaluated(tmp_path, "b", 4, "other"), evaluated(tmp_path, "c", 4)]
    assert describe_different_tasks(folders) == (
        "Evaluated on different tasks: a, c (4 tasks of reasoning_gym); b (4 tasks of reasoning_gym). Compare only a "
        "with c."
    )
    assert describe_different_tasks(folders[:2]).endswith(". None of these can be compared with another.")


def test_tasks_that_all_have_are_told_with_what_to_do(tmp_path: Path) -> None:
    said = describe_different_tasks([evaluated(tmp_path, "a", 4), evaluated(tmp_path, "b", 9)])
    assert said == (
        "Evaluated on different tasks: a (4 tasks of reasoning_gym); b (9 tasks of reasoning_gym). None of these can be "
        "compared with another. All have 4 tasks in common: evaluate them again with the same --tasks."
    )


def test_where_one_has_no_digests_names_tell_tasks_apart(tmp_path: Path) -> None:
    folders = [evaluated(tmp_path, "a", 4), evaluated(tmp_path, "b", 4, "")]
    assert describe_different_tasks(folders) == ""


def test_a_run_without_a_base_is_not_held_against_that_of_other_tasks(tmp_path: Path) -> None:
    first, other = evaluated(tmp_path, "a", 4), evaluated(tmp_path, "b", 4, "other", ["last"])
    assert [row.reward and row.reward.gain for row in compare_runs([first, other])] == [1.0, None]
    assert [row.reward and row.reward.gain for row in compare_runs([other, first])] == [None, 1.0]


def test_a_run_without_a_base_is_not_compared_with_that_of_an_environment_that_shares_no_task(tmp_path: Path) -> None:
    first, other = evaluated(tmp_path, "a", 4), RunFolder.create(settings("tiny", tmp_path, name="b"))
    evaluation = saved("last", [1.0] * 4)
    rewards = {f"u{n}": 1.0 for n in range(4)}
    write_evaluation(
        other,
        {**evaluation, "rewards": rewards, "outcomes": {}, "prompts": {f"u{n}": f"d{n}" for n in range(4)}},
        "last-sampled",
    )
    assert [row.reward and row.reward.base for row in compare_runs([first, other])] == [0.0, None]


def test_a_task_that_could_not_be_scored_is_evaluated_all_the_same(tmp_path: Path) -> None:
    first, other = evaluated(tmp_path, "a", 4), RunFolder.create(settings("tiny", tmp_path, name="b"))
    evaluation = saved("last", [1.0] * 3)
    write_evaluation(other, {**evaluation, "prompts": {f"t{n}": f"d{n}" for n in range(4)}}, "last-sampled")
    assert describe_different_tasks([first, other]) == ""


def test_the_command_ends_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [evaluated(tmp_path, "a", 4), evaluated(tmp_path, "b", 4, "other")]
    shown = run(capsys, "compare", *(str(folder.path) for folder in folders))
    assert "+1.000 Evaluated on different tasks: a (4 tasks of reasoning_gym); b" in shown
    shown = run(capsys, "compare", str(folders[0].path), str(folders[0].path))
    assert "different tasks" not in shown
