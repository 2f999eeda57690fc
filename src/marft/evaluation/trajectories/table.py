"""Metrics of trajectories in the terminal: one a row, for the team and beneath it for each agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from marft.evaluation.trajectories.measures import MEASURES, over
from marft.evaluation.trajectories.ratio import Ratio
from marft.metrics import known
from marft.texts import one_line

ELSEWHERE = ("accuracy", "reward")  # which stand in the table of evaluations


def trajectory_table(evaluations: Sequence[Mapping[str, Any]]) -> Table:
    """A column for each evaluation, as it was saved; a row for what any of them has, and does not say nothing."""
    columns = [values_of(evaluation) for evaluation in evaluations]
    table = Table(box=None, pad_edge=False)
    table.add_column("over trajectories", overflow="fold")
    for evaluation in evaluations:
        shuffled = " shuffled" if evaluation["shuffled_messages"] else ""
        table.add_column(Text(f"{evaluation['checkpoint']} {evaluation['mode']}{shuffled}"), justify="right")
    for name in sorted({name for column in columns for name in column if known(name).name in MEASURES}, key=_place):
        metric, who = known(name), name.split("/")[1] if "/" in name else ""
        values = [column.get(name) for column in columns]
        if metric.name not in ELSEWHERE and (any(values) or not metric.unless_zero):
            unit = f" ({metric.unit})" if metric.unit else ""
            shown = ("" if value is None else metric.shown(value) for value in values)
            table.add_row(Text(f"  {one_line(who)}" if who else f"{metric.label}{unit}"), *map(Text, shown))
    return table


def values_of(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of an evaluation as it was saved; earlier versions saved none."""
    tasks = evaluation.get("measured", {}).values()
    return over({name: Ratio(*pair) for name, pair in task.items()} for task in tasks)


def _place(name: str) -> tuple[int, str]:
    return [*MEASURES].index(known(name).name), name if "/" in name else ""
