"""Evaluation metrics by task cohort, for the terminal, the report and the viewer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from marft.common.texts import single_line
from marft.evaluation.cohorts import label_cohorts, merge_fields
from marft.evaluation.trajectories.table import MetricRow, build_metric_rows, column_names


@dataclass(frozen=True, slots=True)
class Cohort:
    """Metrics for tasks with a common field value.

    Args:
        name: display name, such as ``level = hard``.
        tasks: number of measured tasks in each evaluation.
        rows: metrics with a cell for each evaluation, accuracy and reward first.
    """

    name: str
    tasks: Sequence[int]
    rows: Sequence[MetricRow]


def shared_fields(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the task fields with cohorts in at least one evaluation."""
    return sorted({field for evaluation in evaluations for field in evaluation.get("fields", {})})


def compute_cohort_metrics(evaluations: Sequence[Mapping[str, Any]], by: str) -> list[Cohort]:
    """Return the metrics of saved evaluations for each cohort of a field.

    Raises:
        ValueError: no task has this field.
    """
    fields = merge_fields(evaluation.get("fields", {}) for evaluation in evaluations)
    cohorts = []
    for name, tasks in label_cohorts(fields, by).items():
        parts = [_select_tasks(evaluation, tasks) for evaluation in evaluations]
        cohorts.append(Cohort(name, [len(part["measured"]) for part in parts], build_metric_rows(parts, ())))
    return cohorts


def build_cohort_table(evaluations: Sequence[Mapping[str, Any]], by: str) -> Table:
    """Return a table with a column for each evaluation.

    Each cohort has a row with its task counts, followed by its metrics.

    Raises:
        ValueError: no task has this field.
    """
    table = Table(box=None, pad_edge=False)
    table.add_column(Text(single_line(f"by {by}")), overflow="fold")
    for heading in column_names(evaluations):
        table.add_column(Text(heading), justify="right")
    for cohort in compute_cohort_metrics(evaluations, by):
        table.add_row(Text(single_line(cohort.name), "bold"), *(Text(f"{number} tasks") for number in cohort.tasks))
        for row in cohort.rows:
            name = f"    {single_line(row.agent)}" if row.agent else f"  {row.label}"
            table.add_row(Text(name), *map(Text, row.cells))
    return table


def _select_tasks(evaluation: Mapping[str, Any], tasks: set[str]) -> dict[str, Any]:
    """Restrict an evaluation to the given tasks."""
    measured = evaluation.get("measured", {})
    return {**evaluation, "measured": {task: metrics for task, metrics in measured.items() if task in tasks}}
