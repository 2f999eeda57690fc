"""Tables of trajectory metrics over all tasks and by cohort, for the terminal, the report and the viewer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from marft.common.metrics import find_metric, require_metric
from marft.common.texts import single_line
from marft.evaluation.checkpoint_results import describe_conditions, format_percent
from marft.evaluation.cohorts import label_cohorts, merge_fields
from marft.evaluation.ratios import Ratio
from marft.evaluation.trajectory_metrics import METRICS, aggregate_ratios

OMITTED_METRICS = ("accuracy", "reward")  # metrics in the table of evaluations


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Formatted values of a metric in several evaluations; "" if absent.

    Args:
        label: label of the metric, with its unit.
        agent: role of the agent; "" is the team.
    """

    label: str
    agent: str
    cells: Sequence[str]


def column_names(evaluations: Sequence[Mapping[str, Any]], targets: bool = False) -> list[str]:
    """Return the column heading of each evaluation.

    Args:
        targets: put the evaluated target on a line above.
    """
    names = [f"{e['checkpoint']} {describe_conditions(e)}" for e in evaluations]
    if not targets:
        return names
    return [f"{single_line(e['target'])}\n{name}" for e, name in zip(evaluations, names, strict=True)]


def build_metric_rows(
    evaluations: Sequence[Mapping[str, object]], omitted: Collection[str] = OMITTED_METRICS
) -> list[MetricRow]:
    """Return a row for each metric in the saved evaluations, with agents below their team.

    A metric that is 0 everywhere is omitted if the catalog says so.

    Args:
        omitted: metrics to omit, because another table shows them.
    """
    columns, rows = [compute_values(evaluation) for evaluation in evaluations], []
    names = {name for column in columns for name in column}  # may include unknown names, from another version
    known_names = [name for name in names if (entry := find_metric(name)) and entry.name in METRICS]
    for name in sorted(known_names, key=_sort_key):
        metric, role = require_metric(name), name.split("/")[1] if "/" in name else ""
        values = [column.get(name) for column in columns]
        if metric.name not in omitted and (any(values) or not metric.hide_zero):
            unit = f" ({metric.unit})" if metric.unit else ""
            # as in the table of evaluations
            formatter = format_percent if metric.name == "accuracy" else metric.format_value
            cells = ["" if value is None else formatter(value) for value in values]
            rows.append(MetricRow(f"{metric.label}{unit}", role, cells))
    return rows


def build_metric_table(evaluations: Sequence[Mapping[str, object]], targets: bool = False) -> Table:
    """Return a table with a column for each evaluation and a row for each metric."""
    table = Table(box=None, pad_edge=False)
    table.add_column("over trajectories", overflow="fold")
    for heading in column_names(evaluations, targets):
        table.add_column(Text(heading), justify="right")
    for row in build_metric_rows(evaluations):
        table.add_row(Text(f"  {single_line(row.agent)}" if row.agent else row.label), *map(Text, row.cells))
    return table


def compute_values(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """Return a saved evaluation's metrics. The result is empty for versions that did not save metrics."""
    tasks = evaluation.get("measured", {}).values()
    return aggregate_ratios({name: Ratio(*pair) for name, pair in task.items()} for task in tasks)


def _sort_key(name: str) -> tuple[int, str]:
    return [*METRICS].index(require_metric(name).name), name if "/" in name else ""


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


def build_cohort_table(evaluations: Sequence[Mapping[str, object]], by: str) -> Table:
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
