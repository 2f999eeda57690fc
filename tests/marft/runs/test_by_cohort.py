"""``marft eval --group-by``: metrics by cohorts of tasks, and a field that no task has, before anything is played."""

from __future__ import annotations

from pathlib import Path

import pytest

from marft.runs.run_folder import RunFolder
from tests.marft.evaluation.test_kept_evaluations import lengths
from tests.marft.evaluation.test_scenarios import command


def test_metrics_stand_by_cohort_and_an_unknown_field_is_refused_before_anything_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.create(lengths(tmp_path))
    words = ("eval", folder.path, "--checkpoint", "base", "--mode", "greedy", "--tasks", "4", "--group-by")
    assert command(*words, "levle") == 2
    assert "did you mean 'level'?" in capsys.readouterr().err
    assert not folder.evaluations.exists()
    assert command(*words, "level") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if "=" in row] == [["level", "=", level, "2", "tasks"] for level in "01"]
    assert (
        len([row for row in rows if row[:1] == ["accuracy"] and row[1].endswith("%")]) == 3
    )  # of all tasks, and of each level
    words = (
        "eval",
        folder.path,
        "--checkpoint",
        "base",
        "--mode",
        "greedy",
        "--evaluation.tasks",
        "4",
        "--group-by",
        "level",
    )
    assert command(*words) == 0, "as many tasks as the recipe says"
