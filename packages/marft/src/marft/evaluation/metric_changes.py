"""Changes between two evaluations on the same tasks, by metric and by task, as text, Markdown, HTML and JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any, NamedTuple
from xml.etree import ElementTree

from rich.table import Table
from rich.text import Text

from marft.common.metrics import find_metric
from marft.common.texts import join_names, single_line
from marft.evaluation.cohorts import group_tasks_by_label
from marft.evaluation.gates import Verdict, group_by_metric, metric_formatters
from marft.evaluation.ratios import PairedDifference, Ratio, compare_ratios

COLUMNS = ("tasks", "metric", "before", "after", "change", "95 % interval")
SUMMARY_COLUMNS = COLUMNS[1:]  # the title states the number of tasks
LEFT_ALIGNED = 1  # number of left-aligned columns


class OutcomeChanges(NamedTuple):
    """Tasks on both sides with a changed outcome.

    Args:
        failed: tasks solved before only.
        solved: tasks solved after only.
    """

    failed: Sequence[str]
    solved: Sequence[str]

    @property
    def summary(self) -> str:
        """Number and some names of newly failed and newly solved tasks; "" if no outcome changed.

        >>> OutcomeChanges(["sum/3", "sum/8"], []).summary
        'newly failed: 2 (sum/3, sum/8); newly solved: 0'
        """
        if not self.failed and not self.solved:
            return ""
        failed, solved = (
            f"{len(tasks)} ({join_names([*map(single_line, tasks)])})" if tasks else "0"
            for tasks in (self.failed, self.solved)
        )
        return f"newly failed: {failed}; newly solved: {solved}"


def find_outcome_changes(before: Mapping[str, Ratio], after: Mapping[str, Ratio]) -> OutcomeChanges:
    """Return the tasks with changed outcomes, from the accuracy of each task.

    A task is solved if at least half of its attempts are.

    >>> find_outcome_changes({"a": Ratio(1, 1), "b": Ratio(1, 4)}, {"a": Ratio(0, 1), "b": Ratio(2, 4)})
    OutcomeChanges(failed=['a'], solved=['b'])
    """
    both = [task for task in before if task in after and before[task].denominator and after[task].denominator]
    return OutcomeChanges(
        [task for task in both if _is_solved(before[task]) and not _is_solved(after[task])],
        [task for task in both if _is_solved(after[task]) and not _is_solved(before[task])],
    )


def _is_solved(accuracy: Ratio) -> bool:
    return accuracy.numerator >= accuracy.denominator / 2


class MetricChange(NamedTuple):
    """Metric change for a cohort (for example ``level = 3``) or for the whole set."""

    cohort: str
    metric: str
    difference: PairedDifference


def compare_metrics(before: Mapping[str, object], after: Mapping[str, Any], by: str = "") -> list[MetricChange]:
    """Return the change in each common metric, over all tasks and then by cohort.

    Args:
        by: a field of the tasks; "" compares over all tasks only.

    Raises:
        ValueError: the tasks have no such field.
    """
    before_metrics, after_metrics = group_by_metric(before), group_by_metric(after)
    cohorts = group_tasks_by_label(after.get("fields", {}), by) if by else {}
    metric_changes = []
    for cohort, tasks in {"all": None, **cohorts}.items():
        for metric in [name for name in before_metrics if name in after_metrics]:
            difference = compare_ratios(before_metrics[metric], after_metrics[metric], tasks)
            if difference is not None:
                metric_changes.append(MetricChange(cohort, metric, difference))
    return metric_changes


def build_changes_table(changes: Sequence[MetricChange], title: str) -> Table:
    """Return the changes as a terminal table, with a heading above the changes of each cohort.

    A metric that is 0 on both sides is omitted if the catalog says so.
    """
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for heading in COLUMNS:
        table.add_column(heading, justify="left" if heading in COLUMNS[:2] else "right", overflow="fold")
    for cohort, of_cohort in groupby(changes, lambda change: change.cohort):
        if cohort != "all":
            table.add_row("", Text(single_line(cohort), "bold"))
        for change in filter(_is_shown, of_cohort):
            _, *cells = next(format_rows([change]))
            table.add_row(str(change.difference.tasks), *(Text(single_line(cell)) for cell in cells))
    return table


def _escape_markdown(text: str) -> str:
    """Escape text for literal display in GitHub Markdown, also inside a table cell."""
    return re.sub(r"([\\`*_{}\[\]<>#|~@])", r"\\\1", single_line(text)).replace("\\_", "_")


def _inline_code(text: str) -> str:
    return "`" + single_line(text).replace("`", "'") + "`"


def format_rows(changes: Iterable[MetricChange]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each change, in the order of ``COLUMNS``."""
    for cohort, metric, difference in changes:
        value, change = metric_formatters(metric)
        low_high = difference.interval
        # the unit once, after the second number
        interval = f"{change(low_high[0]).removesuffix(' points')} to {change(low_high[1])}" if low_high else ""
        tasks = f"{difference.tasks}" if cohort == "all" else f"{difference.tasks}, {cohort}"
        yield tasks, metric, value(difference.before), value(difference.after), change(difference.gain), interval


def _select_team_changes(changes: Sequence[MetricChange]) -> list[MetricChange]:
    """Return the shown changes in the team's metrics over all tasks."""
    team = [change for change in changes if change.cohort == "all" and not change.metric.startswith("agents/")]
    return list(filter(_is_shown, team))


def _is_shown(change: MetricChange) -> bool:
    metric = find_metric(change.metric)
    return not (metric and metric.hide_zero and change.difference.before == change.difference.after == 0.0)


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


def _verdict_word(verdict: Verdict) -> str:
    return "failed" if verdict.failed else "passed"


def _escape_html(text: str) -> str:
    return escape(single_line(text))


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Gate verdicts, metric changes and changed task outcomes between two teams.

    All are keyed by evaluation conditions, such as ``greedy`` or ``sampled on smoke``.

    ``passed`` is True if every gate held. ``reasons`` lists the reasons of the failed gates. Printed, or as the last
    value of a notebook cell, a comparison is a small table.
    """

    verdicts: Mapping[str, Sequence[Verdict]]
    changes: Mapping[str, Sequence[MetricChange]]
    outcome_changes: Mapping[str, OutcomeChanges]

    @property
    def passed(self) -> bool:
        """True if no gate failed."""
        return not self.reasons

    @property
    def reasons(self) -> list[str]:
        """Failure reason for each failed gate."""
        return [
            f"{verdict.gate.text} ({label}): {verdict.reason}"
            for label, items in self.verdicts.items()
            for verdict in items
            if verdict.failed
        ]

    def __repr__(self) -> str:
        """Summarize the change in accuracy, or else in reward, for each evaluation, with the number of failed gates."""
        parts = []
        for label, items in self.changes.items():
            first = {change.metric: change for change in reversed(_select_team_changes(items))}
            main_change, text = first.get("accuracy") or first.get("reward"), single_line(label)
            if main_change:
                ((_, metric, before, after, change, interval),) = format_rows([main_change])
                text += f": {metric} {before} → {after} ({change}{f', {interval}' if interval else ''})"
            parts.append(text)
        if gates := sum(map(len, self.verdicts.values())):
            parts.append(f"{len(self.reasons)} of {gates} gates failed")
        return f"Comparison({'; '.join(parts)})"

    def __str__(self) -> str:
        """Return the team's metric changes, changed outcomes and gates as text."""
        lines = list[str]()
        for label, items in self.changes.items():
            team, outcomes = _select_team_changes(items), self.outcome_changes[label].summary
            lines += [_title(label, team), *_align_columns([SUMMARY_COLUMNS, *_cells(team)])]
            lines += [f"of all tasks {outcomes}"] if outcomes else []
            lines += [
                f"{_verdict_word(verdict)}: {single_line(verdict.gate.text)}: {single_line(verdict.reason)}"
                for verdict in self.verdicts[label]
            ]
            lines.append("")
        return "\n".join(lines).rstrip()

    def _repr_html_(self) -> str:
        """Return the team's metric changes, changed outcomes and gates as HTML for a notebook."""
        parts = list[str]()
        for label, items in self.changes.items():
            team, outcomes = _select_team_changes(items), self.outcome_changes[label].summary
            rows = "".join(_row(cells, "td") for cells in _cells(team))
            parts.append(f"<p><b>{_escape_html(_title(label, team))}</b></p>")
            parts.append(f"<table>{_row(SUMMARY_COLUMNS, 'th')}{rows}</table>")
            parts += [f"<p>of all tasks {_escape_html(outcomes)}</p>"] if outcomes else []
            verdicts = "".join(
                f"<li><b>{_verdict_word(verdict)}</b>: <code>{_escape_html(verdict.gate.text)}</code>: "
                f"{_escape_html(verdict.reason)}</li>"
                for verdict in self.verdicts[label]
            )
            parts += [f"<ul>{verdicts}</ul>"] if verdicts else []
        return "\n".join(parts)

    def as_markdown(self) -> str:
        """Return a Markdown page with gates, tasks whose outcome changed, and metric changes for each evaluation.

        Changes by cohort are collapsed.
        """
        failed, gates = len(self.reasons), sum(map(len, self.verdicts.values()))
        lines = list[str]()
        if gates:
            lines = [f"**{failed} of {gates} gates failed**" if failed else f"all {gates} gates passed", ""]
        for label, items in self.changes.items():
            lines += [f"## {single_line(label)}", ""]
            lines += [
                f"- {'**failed**' if v.failed else 'passed'}: {_inline_code(v.gate.text)}: {_escape_markdown(v.reason)}"
                for v in self.verdicts[label]
            ]
            if outcomes := self.outcome_changes[label].summary:
                lines += ["", f"Of all tasks {_escape_markdown(outcomes)}."]
            for cohort, changes in groupby(items, lambda change: change.cohort):
                table = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join('---' for _ in COLUMNS)} |"]
                table += [f"| {' | '.join(_escape_markdown(cell) for cell in row)} |" for row in format_rows(changes)]
                summary = f"<summary>{_escape_markdown(cohort)}</summary>"
                wrapped = ["<details>", summary, "", *table, "", "</details>"]
                lines += ["", *(table if cohort == "all" else wrapped)]
            lines.append("")
        return "\n".join(lines)

    def as_junit(self) -> str:
        """Return the gates as JUnit XML, for CI services.

        Each evaluation is a test suite and each gate a test case, by the schema of Jenkins' xUnit plug-in
        (``junit-10.xsd``). The text of a failure also names the tasks whose outcome changed.
        """
        root = ElementTree.Element("testsuites", name="marft compare")
        for label, items in self.verdicts.items():
            name, failures = single_line(label), str(sum(verdict.failed for verdict in items))
            suite = ElementTree.SubElement(
                root, "testsuite", name=name, tests=str(len(items)), failures=failures, errors="0"
            )
            for verdict in items:
                gate, reason = single_line(verdict.gate.text), single_line(verdict.reason)
                case = ElementTree.SubElement(suite, "testcase", classname=f"marft.{name}", name=gate)
                if verdict.failed:
                    texts = filter(None, (reason, self.outcome_changes[label].summary))
                    failure = ElementTree.SubElement(case, "failure", message=reason, type="gate")
                    failure.text = "; of all tasks ".join(texts)
                else:
                    ElementTree.SubElement(case, "system-out").text = reason
        return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
