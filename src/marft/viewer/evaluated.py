"""What a run's evaluations measured, and what ``marft worth`` found, as far as their files can be read."""

from __future__ import annotations

from typing import Any

from marft.evaluation.trajectories.table import trajectory_rows
from marft.runs.written import read_evaluation, read_headline
from marft.viewer.library import Run

SHOWN = ("checkpoint", "mode", "shuffled_messages", "tasks", "accuracy", "interval", "reward", "reward_interval",
         "passes")  # fmt: skip


def evaluated(run: Run) -> dict[str, Any]:
    """Every evaluation with its intervals, metrics over trajectories as a table with a column each, what is damaged,
    and the sentence of ``marft worth``, "" where it has not been asked."""
    found, problems = [], []
    for path in sorted(run.folder.evaluations.glob("*.json")):
        try:
            found.append((path.stem, read_evaluation(path)))
        except ValueError as error:
            problems.append(str(error))
    rows = trajectory_rows([evaluation for _, evaluation in found])
    return {
        "evaluations": [
            {"name": name, **{key: evaluation.get(key) for key in SHOWN}, "episodes": name in run.shelf.evaluations}
            for name, evaluation in found
        ],
        "trajectories": [{"label": row.label, "agent": row.agent, "cells": list(row.cells)} for row in rows],
        "problems": problems,
        "worth": read_headline(run.folder.worth / "worth.json"),
    }
