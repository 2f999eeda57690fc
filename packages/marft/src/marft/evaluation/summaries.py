"""Comparison summaries: a few lines for terminals, and HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from marft.common.texts import single_line
from marft.evaluation.gates import Verdict
from marft.evaluation.metric_changes import COLUMNS, MetricChange, format_rows
from marft.evaluation.outcome_changes import OutcomeChanges

SUMMARY_COLUMNS = COLUMNS[1:]  # the title states the number of tasks
LEFT_ALIGNED = 1  # number of left-aligned columns


def summarize_line(changes: Mapping[str, Sequence[MetricChange]], verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """Summarize the change in accuracy, or else in reward, for each evaluation, with the number of failed gates."""
    parts = []
    for label, items in changes.items():
        first = {change.metric: change for change in reversed(_select_team_changes(items))}
        main_change = first.get("accuracy") or first.get("reward")
        if main_change:
            ((_, metric, before, after, change, interval),) = format_rows([main_change])
            parts.append(
                f"{single_line(label)}: {metric} {before} → {after} ({change}{f', {interval}' if interval else ''})"
            )
        else:
            parts.append(single_line(label))
    return "; ".join([*parts, *([_count_failed_gates(verdicts)] if _count_failed_gates(verdicts) else [])])


def as_text(
    changes: Mapping[str, Sequence[MetricChange]],
    verdicts: Mapping[str, Sequence[Verdict]],
    outcome_changes: Mapping[str, OutcomeChanges],
) -> str:
    """Return the team's metric changes, changed outcomes and gates as text."""
    lines = list[str]()
    for label, items in changes.items():
        team = _select_team_changes(items)
        lines += [_title(label, team), *_align_columns([SUMMARY_COLUMNS, *_cells(team)])]
        lines += [f"of all tasks {outcome_changes[label].summary}"] if outcome_changes[label].summary else []
        lines += [
            f"{_verdict_word(verdict)}: {single_line(verdict.gate.text)}: {single_line(verdict.reason)}"
            for verdict in verdicts[label]
        ]
        lines.append("")
    return "\n".join(lines).rstrip()


def as_html(
    changes: Mapping[str, Sequence[MetricChange]],
    verdicts: Mapping[str, Sequence[Verdict]],
    outcome_changes: Mapping[str, OutcomeChanges],
) -> str:
    """Return the team's metric changes, changed outcomes and gates as HTML for a notebook."""
    parts = list[str]()
    for label, items in changes.items():
        team = _select_team_changes(items)
        body = "".join(_row(cells, "td") for cells in _cells(team))
        parts += [
            f"<p><b>{_escape_html(_title(label, team))}</b></p>",
            f"<table>{_row(SUMMARY_COLUMNS, 'th')}{body}</table>",
        ]
        parts += (
            [f"<p>of all tasks {_escape_html(outcome_changes[label].summary)}</p>"]
            if outcome_changes[label].summary
            else []
        )
        verdict_items = "".join(
            f"<li><b>{_verdict_word(verdict)}</b>: <code>{_escape_html(verdict.gate.text)}</code>: "
            f"{_escape_html(verdict.reason)}</li>"
            for verdict in verdicts[label]
        )
        parts += [f"<ul>{verdict_items}</ul>"] if verdict_items else []
    return "\n".join(parts)


def _select_team_changes(changes: Sequence[MetricChange]) -> list[MetricChange]:
    """Return the changes in the team's metrics over all tasks."""
    return [change for change in changes if change.cohort == "all" and not change.metric.startswith("agents/")]


def _title(label: str, team: Sequence[MetricChange]) -> str:
    tasks = max((change.difference.tasks for change in team), default=0)
    return f"{single_line(label)}, {tasks} tasks"


def _cells(changes: Sequence[MetricChange]) -> Iterator[Sequence[str]]:
    return (tuple(single_line(cell) for cell in cells[1:]) for cells in format_rows(changes))


def _align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for cells in rows:
        padded = [
            cell.ljust(width) if number < LEFT_ALIGNED else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def _row(cells: Sequence[str], kind: str) -> str:
    html_cells = [
        f'<{kind} style="text-align: {"left" if number < LEFT_ALIGNED else "right"}">{_escape_html(cell)}</{kind}>'
        for number, cell in enumerate(cells)
    ]
    return f"<tr>{''.join(html_cells)}</tr>"


def _count_failed_gates(verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    all_verdicts = [verdict for items in verdicts.values() for verdict in items]
    failed = sum(verdict.failed for verdict in all_verdicts)
    return f"{failed} of {len(all_verdicts)} gates failed" if all_verdicts else ""


def _verdict_word(verdict: Verdict) -> str:
    return "failed" if verdict.failed else "passed"


def _escape_html(text: str) -> str:
    return escape(single_line(text))
