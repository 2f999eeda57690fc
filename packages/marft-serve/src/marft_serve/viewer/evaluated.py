"""Results from a run's evaluations; unreadable files are reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marft.evaluation.trajectories.by_cohort import Cohort, by_cohort, shared_fields
from marft.evaluation.trajectories.table import Row, trajectory_rows
from marft.runs.written import read_evaluation
from marft_serve.viewer.library import Run

SHOWN = ("checkpoint", "mode", "shuffled_messages", "tasks", "accuracy", "interval", "reward", "reward_interval",
         "passes")  # fmt: skip


def evaluated(run: Run, by: str = "") -> dict[str, Any]:
    """Return every evaluation with confidence intervals and trajectory metrics, results by cohort, and problems.

    Args:
        run: the run.
        by: field of the tasks that defines cohorts, from ``fields``; "" for no cohorts. An unknown field is reported
            as a problem.
    """
    found, problems = [], []
    for path in sorted(run.folder.evaluations.glob("*.json")):
        try:
            found.append((path.stem, read_evaluation(path)))
        except ValueError as error:
            problems.append(str(error))
    evaluations = [evaluation for _, evaluation in found]
    cohorts: list[Cohort] = []
    try:
        cohorts = by_cohort(evaluations, by) if by else []
    except ValueError as error:
        problems.append(str(error))
    return {
        "evaluations": [
            {"name": name, **{key: evaluation.get(key) for key in SHOWN}, "episodes": name in run.shelf.evaluations}
            for name, evaluation in found
        ],
        "trajectories": _told(trajectory_rows(evaluations)),
        "fields": shared_fields(evaluations),
        "cohorts": [{"name": one.name, "tasks": list(one.tasks), "rows": _told(one.rows)} for one in cohorts],
        "problems": problems,
    }


def _told(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{"label": row.label, "agent": row.agent, "cells": list(row.cells)} for row in rows]
