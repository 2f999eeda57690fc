"""Results from a run's evaluations; unreadable files are reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marft.evaluation.trajectories.cohort_metrics import Cohort, compute_cohort_metrics, shared_fields
from marft.evaluation.trajectories.table import MetricRow, build_metric_rows
from marft.runs.saved_schemas import read_evaluation
from marft_serve.viewer.library import Run

RESULT_FIELDS = (
    "checkpoint",
    "mode",
    "shuffled_messages",
    "tasks",
    "accuracy",
    "interval",
    "reward",
    "reward_interval",
    "passes",
)


def get_evaluations(run: Run, by: str = "") -> dict[str, Any]:
    """Return every evaluation with confidence intervals and trajectory metrics, results by cohort, and problems.

    Args:
        run: the run.
        by: field of the tasks that defines cohorts, from ``fields``; "" for no cohorts. An unknown field is reported
            as a problem.
    """
    loaded, problems = [], []
    for path in sorted(run.folder.evaluations.glob("*.json")):
        try:
            loaded.append((path.stem, read_evaluation(path)))
        except ValueError as error:
            problems.append(str(error))
    evaluations = [evaluation for _, evaluation in loaded]
    cohorts: list[Cohort] = []
    try:
        cohorts = compute_cohort_metrics(evaluations, by) if by else []
    except ValueError as error:
        problems.append(str(error))
    return {
        "evaluations": [
            {
                "name": name,
                **{key: evaluation.get(key) for key in RESULT_FIELDS},
                "episodes": name in run.index.evaluations,
            }
            for name, evaluation in loaded
        ],
        "trajectories": _build_rows(build_metric_rows(evaluations)),
        "fields": shared_fields(evaluations),
        "cohorts": [
            {"name": cohort.name, "tasks": list(cohort.tasks), "rows": _build_rows(cohort.rows)} for cohort in cohorts
        ],
        "problems": problems,
    }


def _build_rows(rows: Sequence[MetricRow]) -> list[dict[str, Any]]:
    return [{"label": row.label, "agent": row.agent, "cells": list(row.cells)} for row in rows]
