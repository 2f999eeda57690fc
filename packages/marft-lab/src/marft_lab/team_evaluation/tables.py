"""Tables of the comparison, for the terminal, for Markdown and for a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from marft.common.texts import single_line
from marft.evaluation.checkpoint_results import (
    format_interval,
    format_number,
    format_percent,
    format_points,
    format_signed,
)
from marft_lab.team_evaluation.counterfactual import AgentContribution
from marft_lab.team_evaluation.policy_swaps import CrossPlayMatrix
from marft_lab.team_evaluation.scores import Measure, MetricValue
from marft_lab.team_evaluation.session import TeamEvaluation

Formatter = Callable[[float | None], str]


@dataclass(frozen=True, slots=True)
class TextTable:
    """Table with ``left`` text columns, followed by number columns."""

    title: str
    headings: Sequence[str]
    cells: Sequence[Sequence[str]]
    left: int = 1


def build_tables(result: TeamEvaluation) -> list[TextTable]:
    """Return the tables, in the parts' order."""
    tables = [_build_variant_table(result)]
    tables += [_build_matrix_table(matrix, result.measure) for matrix in result.matrices]
    if result.counterfactual and result.counterfactual.shares:
        tables.append(_build_contribution_table(result.counterfactual.shares))
    return tables


def render_terminal(rows: TextTable) -> Table:
    """Return a table for the terminal, with its title."""
    table = Table(
        box=None, pad_edge=False, title=Text(single_line(rows.title)), title_justify="left", title_style="bold"
    )
    for index, heading in enumerate(rows.headings):
        right = index >= rows.left
        table.add_column(Text(heading), justify="right" if right else "left", no_wrap=right)
    for cells in rows.cells:
        table.add_row(*(Text(single_line(cell)) for cell in cells))
    return table


def render_markdown(result: TeamEvaluation, plot_names: Sequence[str]) -> str:
    """Return the result as Markdown: tables, notes, and references to plots in the same folder.

    Args:
        result: result of the comparison.
        plot_names: names of the plots, without suffix.
    """
    parts = [f"# Is the team worth it? {_escape_markdown(result.run)}", _escape_markdown(format_headline(result))]
    for rows in build_tables(result):
        marks = ["---"] * rows.left + ["---:"] * (len(rows.headings) - rows.left)
        lines = [rows.headings, marks, *rows.cells]
        parts += [
            f"## {_escape_markdown(rows.title)}",
            "\n".join(f"| {' | '.join(map(_escape_markdown, line))} |" for line in lines),
        ]
    parts += [f"![{name}]({name}.svg)" for name in plot_names]
    parts += ["\n".join(f"- {_escape_markdown(part)}: {_escape_markdown(text)}" for part, text in result.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def format_headline(result: TeamEvaluation) -> str:
    """Return the result as a sentence: the team and the best alternative at no higher cost."""
    team, formatter = result.rows[0], measure_formatters(result.measure)[0]
    team_value = team.values.get(result.measure)
    summary = (
        f"{result.checkpoint}: the team has {result.measure} {formatter(team_value.value if team_value else None)} "
        f"on {result.tasks} tasks"
    )
    alone = [row for row in result.rows if row.part == "single" and "verifier" not in row.name]
    single_values = [(row, value) for row in alone if (value := row.values.get(result.measure))]
    if not single_values:
        return f"{summary}, with {_format_integer(team.tokens)} tokens"
    row, single_value = max(single_values, key=lambda pair: pair[1].value)
    return (
        f"{summary}, with {_format_integer(team.tokens)} tokens; {row.name} has {formatter(single_value.value)}, with "
        f"{_format_integer(row.tokens)}: {describe_verdict(single_value)}"
    )


def describe_verdict(single_value: MetricValue) -> str:
    """Describe the result of a single agent compared with the team, based on the interval.

    >>> describe_verdict(MetricValue(0.5, None, -0.25, (-0.375, -0.125)))
    'the team is better'
    >>> describe_verdict(MetricValue(0.5, None, 0.0, (-0.125, 0.125)))
    'the tasks do not tell which is better'
    """
    low, high = single_value.difference_interval or (0.0, 0.0)
    if high < 0:
        return "the team is better"
    return "the team is worse" if low > 0 else "the tasks do not tell which is better"


def measure_formatters(measure: Measure) -> tuple[Formatter, Formatter]:
    """Return the formatters of a measure's values and differences."""
    return (format_percent, format_points) if measure == "accuracy" else (format_number, format_signed)


def _build_variant_table(result: TeamEvaluation) -> TextTable:
    format_value, format_difference = measure_formatters(result.measure)
    format_bound = _format_percentage if result.measure == "accuracy" else format_number
    failed = any(row.failed for row in result.rows)
    cells = []
    for row in result.rows:
        measured = row.values.get(result.measure)
        numbers = [""] * 4
        if measured is not None:
            numbers = [
                format_value(measured.value),
                format_interval(measured.interval, format_bound),
                format_difference(measured.difference),
                format_interval(measured.difference_interval, format_difference),
            ]
        costs = [str(row.attempts), _format_integer(row.tokens), _format_tenths(row.seconds)]
        cells.append([row.name, *numbers, *costs, *([str(row.failed)] if failed else [])])
    headings = ["", result.measure, "95 %", "difference", "95 %", "tries", "tokens", "seconds", *["failed"] * failed]
    return TextTable(
        f"{result.checkpoint} on {result.tasks} held-out tasks, and what else was in its place", headings, cells
    )


def _build_matrix_table(matrix: CrossPlayMatrix, measure: Measure) -> TextTable:
    format_value, _ = measure_formatters(measure)
    cells = [
        [f"{matrix.policy} of {name}", *(_format_cell(row.values.get(measure), format_value) for row in rows)]
        for name, rows in zip(matrix.checkpoints, matrix.rows, strict=True)
    ]
    title = f"{matrix.policy} of one checkpoint with {matrix.others} of another: {measure}"
    return TextTable(title, ["", *(f"{matrix.others} of {name}" for name in matrix.checkpoints)], cells)


def _format_cell(value: MetricValue | None, formatter: Formatter) -> str:
    text, interval = _value_cells(value, formatter)
    return f"{text} ({interval})" if interval else text


def _build_contribution_table(shares: Sequence[AgentContribution]) -> TextTable:
    cells = [
        [
            share.agent,
            str(share.actions),
            *_value_cells(share.contribution, format_signed),
            *_value_cells(share.variance, format_number),
            *_value_cells(share.own, format_number),
        ]
        for share in shares
    ]
    headings = ["", "actions", "contribution", "95 %", "variance", "95 %", "own part", "95 %"]
    return TextTable("Actions sampled again: what the reward was more, and how much it varied", headings, cells)


def _value_cells(value: MetricValue | None, formatter: Formatter) -> tuple[str, str]:
    return ("", "") if value is None else (formatter(value.value), format_interval(value.interval, formatter))


def _format_percentage(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _format_integer(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _format_tenths(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _escape_markdown(text: str) -> str:
    return single_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
