"""Tables of trajectory metrics over all tasks and by cohort, for the terminal, the report and the viewer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from marft.common.metrics import Metric, find_metric, require_metric
from marft.common.texts import single_line
from marft.evaluation.checkpoint_results import describe_conditions, format_percent
from marft.evaluation.cohorts import group_tasks_by_label, merge_fields
from marft.evaluation.column_tables import ColumnTable, short_names
from marft.evaluation.ratios import Ratio
from marft.evaluation.trajectory_metrics import METRICS, aggregate_ratios

OMITTED_METRICS = ("accuracy", "reward")  # metrics in the table of evaluations
UNIT_WORDS = {"s": "seconds"}  # units that tables write in full


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


def column_names(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the column heading of each evaluation, for a page."""
    return [f"{e['checkpoint']} {describe_conditions(e)}" for e in evaluations]


def column_headings(evaluations: Sequence[Mapping[str, Any]], targets: bool = False) -> list[list[str]]:
    """Return the column heading of each evaluation in lines: checkpoint, mode, and what else some evaluation has.

    Args:
        targets: put the evaluated target on a line above.
    """
    lines = [[e["checkpoint"] for e in evaluations], [e["mode"] for e in evaluations]]
    names = short_names([str(e["target"]) for e in evaluations]) if targets else []
    teams = [e.get("reorganized", {}).get("name", "") for e in evaluations]
    shuffled = ["shuffled" if e["shuffled_messages"] else "" for e in evaluations]
    lines = [*([names] if targets else []), *lines, *(line for line in (teams, shuffled) if any(line))]
    return [list(heading) for heading in zip(*lines, strict=True)]


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
            # as in the table of evaluations
            formatter = format_percent if metric.name == "accuracy" else metric.format_value
            cells = ["" if value is None else formatter(value) for value in values]
            rows.append(MetricRow(_label_with_unit(metric), role, cells))
    return rows


def _label_with_unit(metric: Metric) -> str:
    """Return a metric's label, with its unit unless the label has it: ``tokens per episode``, ``messages (tokens)``."""
    unit = UNIT_WORDS.get(metric.unit, metric.unit)
    return metric.label if not unit or unit in metric.label else f"{metric.label} ({unit})"


def build_metric_table(evaluations: Sequence[Mapping[str, object]], targets: bool = False) -> ColumnTable:
    """Return a table with a column for each evaluation and a row for each metric."""
    rows = build_metric_rows(evaluations)
    return ColumnTable("metric", column_headings(evaluations, targets), [(_row_label(row), row.cells) for row in rows])


def _row_label(row: MetricRow, indent: str = "") -> Text:
    return Text(f"{indent}  {single_line(row.agent)}" if row.agent else f"{indent}{row.label}")


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


def cohort_fields(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the task fields with cohorts in at least one evaluation."""
    return sorted({field for evaluation in evaluations for field in evaluation.get("fields", {})})


def compute_cohort_metrics(evaluations: Sequence[Mapping[str, Any]], by: str) -> list[Cohort]:
    """Return the metrics of saved evaluations for each cohort of a field.

    Raises:
        ValueError: no task has this field.
    """
    fields = merge_fields(evaluation.get("fields", {}) for evaluation in evaluations)
    cohorts = []
    for name, tasks in group_tasks_by_label(fields, by).items():
        parts = [_select_tasks(evaluation, tasks) for evaluation in evaluations]
        cohorts.append(Cohort(name, [len(part["measured"]) for part in parts], build_metric_rows(parts, ())))
    return cohorts


def build_cohort_table(evaluations: Sequence[Mapping[str, object]], by: str, targets: bool = False) -> ColumnTable:
    """Return a table with a column for each evaluation.

    Each cohort has a row with its task counts, followed by its metrics.

    Raises:
        ValueError: no task has this field.
    """
    rows = list[tuple[Text, Sequence[str]]]()
    for cohort in compute_cohort_metrics(evaluations, by):
        rows.append((Text(single_line(cohort.name), "bold"), [f"{number} tasks" for number in cohort.tasks]))
        rows += [(_row_label(row, "  "), row.cells) for row in cohort.rows]
    return ColumnTable(f"by {by}", column_headings(evaluations, targets), rows)


def _select_tasks(evaluation: Mapping[str, Any], tasks: set[str]) -> dict[str, Any]:
    """Restrict an evaluation to the given tasks."""
    measured = evaluation.get("measured", {})
    return {**evaluation, "measured": {task: metrics for task, metrics in measured.items() if task in tasks}}
