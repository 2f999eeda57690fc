"""Metric changes between two evaluated runs on the same tasks, overall and by cohort, with gates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from xml.etree import ElementTree

from rich.table import Table
from rich.text import Text

from marft.common.texts import single_line
from marft.evaluation.cohorts import label_cohorts
from marft.evaluation.gates import Verdict, group_by_metric, metric_formatters
from marft.evaluation.outcome_changes import OutcomeChanges
from marft.evaluation.paired_difference import PairedDifference, compare_ratios

COLUMNS = ("tasks", "metric", "before", "after", "change", "95 % interval")


class MetricChange(NamedTuple):
    """Metric change for a cohort (for example ``level = 3``) or for the whole set."""

    cohort: str
    metric: str
    difference: PairedDifference


def compare_metrics(before: Mapping[str, Any], after: Mapping[str, Any], by: str = "") -> list[MetricChange]:
    """Return the change in each common metric, over all tasks and then by cohort.

    Args:
        by: a field of the tasks; "" compares over all tasks only.

    Raises:
        ValueError: the tasks have no such field.
    """
    before_metrics, after_metrics = group_by_metric(before), group_by_metric(after)
    cohorts = label_cohorts(after.get("fields", {}), by) if by else {}
    metric_changes = []
    for cohort, tasks in {"all": None, **cohorts}.items():
        for metric in [name for name in before_metrics if name in after_metrics]:
            sides = (
                {t: r for t, r in ratios[metric].items() if tasks is None or t in tasks}
                for ratios in (before_metrics, after_metrics)
            )
            difference = compare_ratios(*sides)
            if difference is not None:
                metric_changes.append(MetricChange(cohort, metric, difference))
    return metric_changes


def build_changes_table(changes: Sequence[MetricChange], title: str) -> Table:
    """Return the changes as a terminal table."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for heading in COLUMNS:
        table.add_column(heading, justify="left" if heading in COLUMNS[:2] else "right", overflow="fold")
    for row in format_rows(changes):
        table.add_row(*(Text(single_line(cell)) for cell in row))
    return table


def as_markdown(
    changes: Mapping[str, Sequence[MetricChange]],
    verdicts: Mapping[str, Sequence[Verdict]],
    outcome_changes: Mapping[str, OutcomeChanges],
) -> str:
    """Return a Markdown page with gates, tasks whose outcome changed, and metric changes for each evaluation.

    Changes by cohort are collapsed.
    """
    failed = sum(verdict.failed for items in verdicts.values() for verdict in items)
    gates = sum(map(len, verdicts.values()))
    lines = [f"**{failed} of {gates} gates failed**" if failed else f"all {gates} gates passed", ""] if gates else []
    for label, items in changes.items():
        lines += [f"## {single_line(label)}", ""]
        lines += [
            f"- {'**failed**' if v.failed else 'passed'}: {_inline_code(v.gate.text)}: {_escape_markdown(v.reason)}"
            for v in verdicts[label]
        ]
        if outcome_changes[label].summary:
            lines += ["", f"Of all tasks {_escape_markdown(outcome_changes[label].summary)}."]
        for title, rows in _group_by_cohort(items):
            table = [f"| {' | '.join(COLUMNS)} |", f"| {' | '.join('---' for _ in COLUMNS)} |"]
            table += [f"| {' | '.join(_escape_markdown(cell) for cell in row)} |" for row in format_rows(rows)]
            wrapped = ["<details>", f"<summary>{_escape_markdown(title)}</summary>", "", *table, "", "</details>"]
            lines += ["", *(wrapped if title else table)]
        lines.append("")
    return "\n".join(lines)


def as_junit(verdicts: Mapping[str, Sequence[Verdict]], outcome_changes: Mapping[str, OutcomeChanges]) -> str:
    """Return the gates as JUnit XML, for CI services.

    Each evaluation is a test suite and each gate a test case, by the schema of Jenkins' xUnit plug-in
    (``junit-10.xsd``). The text of a failure also names the tasks whose outcome changed.
    """
    root = ElementTree.Element("testsuites", name="marft compare")
    for label, items in verdicts.items():
        failures = str(sum(verdict.failed for verdict in items))
        suite = ElementTree.SubElement(
            root, "testsuite", name=single_line(label), tests=str(len(items)), failures=failures, errors="0"
        )
        for verdict in items:
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"marft.{single_line(label)}", name=single_line(verdict.gate.text)
            )
            reason = single_line(verdict.reason)
            if verdict.failed:
                ElementTree.SubElement(case, "failure", message=reason, type="gate").text = "; of all tasks ".join(
                    filter(None, (reason, outcome_changes[label].summary))
                )
            else:
                ElementTree.SubElement(case, "system-out").text = reason
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _group_by_cohort(changes: Sequence[MetricChange]) -> Iterator[tuple[str, list[MetricChange]]]:
    """Yield the changes over all tasks under the title "", then those of each cohort under its name."""
    for cohort, cohort_changes in groupby(changes, lambda change: change.cohort):
        yield "" if cohort == "all" else cohort, list(cohort_changes)


def _escape_markdown(text: str) -> str:
    """Escape text for literal display in GitHub Markdown, also inside a table cell."""
    return re.sub(r"([\\`*_{}\[\]<>#|~@])", r"\\\1", single_line(text)).replace("\\_", "_")


def _inline_code(text: str) -> str:
    return "`" + single_line(text).replace("`", "'") + "`"


def format_rows(changes: Sequence[MetricChange]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each change, in the order of ``COLUMNS``."""
    for cohort, metric, difference in changes:
        value, change = metric_formatters(metric)
        low_high = difference.interval
        interval = f"{change(low_high[0])} to {change(low_high[1])}" if low_high else ""
        tasks = f"{difference.tasks}" if cohort == "all" else f"{difference.tasks}, {cohort}"
        yield tasks, metric, value(difference.before), value(difference.after), change(difference.gain), interval
