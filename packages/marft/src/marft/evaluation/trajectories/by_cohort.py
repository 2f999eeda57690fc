"""Metrics of evaluations by cohorts of tasks: in the terminal, in the report and in the viewer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from marft.common.texts import one_line
from marft.evaluation.cohorts import named_cohorts, together
from marft.evaluation.trajectories.table import Row, headings, trajectory_rows


@dataclass(frozen=True, slots=True)
class Cohort:
    """Tasks of one value of a field.

    Args:
        name: ``level = hard``.
        tasks: how many of them each evaluation measured.
        rows: its metrics, accuracy and reward first, a cell for each evaluation.
    """

    name: str
    tasks: Sequence[int]
    rows: Sequence[Row]


def shared_fields(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields of tasks by which any of the evaluations can be told apart."""
    return sorted({field for evaluation in evaluations for field in evaluation.get("fields", {})})


def by_cohort(evaluations: Sequence[Mapping[str, Any]], by: str) -> list[Cohort]:
    """Evaluations as they were saved, by a field of their tasks: what each metric is in each cohort.

    Raises:
        ValueError: no task of theirs has such a field.
    """
    fields = together(evaluation.get("fields", {}) for evaluation in evaluations)
    found = []
    for name, tasks in named_cohorts(fields, by).items():
        parts = [_only(evaluation, tasks) for evaluation in evaluations]
        found.append(Cohort(name, [len(part["measured"]) for part in parts], trajectory_rows(parts, ())))
    return found


def cohort_table(evaluations: Sequence[Mapping[str, Any]], by: str) -> Table:
    """A column for each evaluation; for each cohort its tasks, and below them its metrics.

    Raises:
        ValueError: no task of theirs has such a field.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column(Text(one_line(f"by {by}")), overflow="fold")
    for heading in headings(evaluations):
        table.add_column(Text(heading), justify="right")
    for cohort in by_cohort(evaluations, by):
        table.add_row(Text(one_line(cohort.name), "bold"), *(Text(f"{number} tasks") for number in cohort.tasks))
        for row in cohort.rows:
            name = f"    {one_line(row.agent)}" if row.agent else f"  {row.label}"
            table.add_row(Text(name), *map(Text, row.cells))
    return table


def _only(evaluation: Mapping[str, Any], tasks: set[str]) -> dict[str, Any]:
    """An evaluation of these tasks alone."""
    measured = evaluation.get("measured", {})
    return {**evaluation, "measured": {task: of for task, of in measured.items() if task in tasks}}
