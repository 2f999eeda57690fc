"""Terminal table of trajectory metrics: a row for the team, followed by rows for its agents."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from marft.common.metrics import find, known
from marft.common.texts import one_line
from marft.evaluation.compare import in_words, percent
from marft.evaluation.trajectories.measures import MEASURES, over
from marft.evaluation.trajectories.ratio import Ratio

ELSEWHERE = ("accuracy", "reward")  # metrics in the table of evaluations


@dataclass(frozen=True, slots=True)
class Row:
    """Formatted values of a metric in several evaluations; "" if absent.

    Args:
        label: label of the metric, with its unit.
        agent: role of the agent; "" is the team.
    """

    label: str
    agent: str
    cells: Sequence[str]


def headings(evaluations: Sequence[Mapping[str, Any]], targets: bool = False) -> list[str]:
    """Return the column heading of each evaluation.

    Args:
        targets: put the evaluated target on a line above.
    """
    called = [f"{e['checkpoint']} {in_words(e)}" for e in evaluations]
    if not targets:
        return called
    return [f"{one_line(e['target'])}\n{name}" for e, name in zip(evaluations, called, strict=True)]


def trajectory_rows(evaluations: Sequence[Mapping[str, Any]], elsewhere: Collection[str] = ELSEWHERE) -> list[Row]:
    """Return a row for each metric in the saved evaluations, with agents below their team.

    A metric that is 0 everywhere is omitted if the catalog says so.

    Args:
        elsewhere: metrics to omit, because another table shows them.
    """
    columns, rows = [values_of(evaluation) for evaluation in evaluations], []
    names = {name for column in columns for name in column}  # may include unknown names, from another version
    for name in sorted((name for name in names if (one := find(name)) and one.name in MEASURES), key=_place):
        metric, who = known(name), name.split("/")[1] if "/" in name else ""
        values = [column.get(name) for column in columns]
        if metric.name not in elsewhere and (any(values) or not metric.unless_zero):
            unit = f" ({metric.unit})" if metric.unit else ""
            shown = percent if metric.name == "accuracy" else metric.shown  # as in the table of evaluations
            cells = ["" if value is None else shown(value) for value in values]
            rows.append(Row(f"{metric.label}{unit}", who, cells))
    return rows


def trajectory_table(evaluations: Sequence[Mapping[str, Any]], targets: bool = False) -> Table:
    """Return a table with a column for each evaluation and a row for each metric."""
    table = Table(box=None, pad_edge=False)
    table.add_column("over trajectories", overflow="fold")
    for heading in headings(evaluations, targets):
        table.add_column(Text(heading), justify="right")
    for row in trajectory_rows(evaluations):
        table.add_row(Text(f"  {one_line(row.agent)}" if row.agent else row.label), *map(Text, row.cells))
    return table


def values_of(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """Return a saved evaluation's metrics. The result is empty for versions that did not save metrics."""
    tasks = evaluation.get("measured", {}).values()
    return over({name: Ratio(*pair) for name, pair in task.items()} for task in tasks)


def _place(name: str) -> tuple[int, str]:
    return [*MEASURES].index(known(name).name), name if "/" in name else ""
