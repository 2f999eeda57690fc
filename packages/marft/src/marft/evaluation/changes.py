"""Metric changes between two evaluated runs on the same tasks, overall and by cohort, with gates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from xml.etree import ElementTree

from rich.table import Table
from rich.text import Text

from marft.common.texts import one_line
from marft.evaluation.cohorts import named_cohorts
from marft.evaluation.gates import Verdict, by_metric, shown
from marft.evaluation.paired import Difference, paired
from marft.evaluation.turned import Turned

HEADINGS = ("tasks", "metric", "before", "after", "change", "95 % interval")


class Change(NamedTuple):
    """Metric change for a cohort (for example ``level = 3``) or for the whole set."""

    cohort: str
    metric: str
    difference: Difference


def changes(before: Mapping[str, Any], after: Mapping[str, Any], by: str = "") -> list[Change]:
    """Return the change in each common metric, over all tasks and then by cohort.

    Args:
        by: a field of the tasks; "" compares over all tasks only.

    Raises:
        ValueError: the tasks have no such field.
    """
    one, two = by_metric(before), by_metric(after)
    cohorts = named_cohorts(after.get("fields", {}), by) if by else {}
    found = []
    for cohort, tasks in {"all": None, **cohorts}.items():
        for metric in [name for name in one if name in two]:
            sides = ({t: r for t, r in of[metric].items() if tasks is None or t in tasks} for of in (one, two))
            difference = paired(*sides)
            if difference is not None:
                found.append(Change(cohort, metric, difference))
    return found


def changes_table(found: Sequence[Change], title: str) -> Table:
    """Return the changes as a terminal table."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in HEADINGS[:2] else "right", overflow="fold")
    for row in rows_of(found):
        table.add_row(*(Text(one_line(cell)) for cell in row))
    return table


def as_markdown(
    found: Mapping[str, Sequence[Change]], verdicts: Mapping[str, Sequence[Verdict]], turned: Mapping[str, Turned]
) -> str:
    """Return a Markdown page with gates, tasks whose outcome changed, and metric changes for each evaluation.

    Changes by cohort are collapsed.
    """
    failed = sum(verdict.failed for some in verdicts.values() for verdict in some)
    gates = sum(map(len, verdicts.values()))
    lines = [f"**{failed} of {gates} gates failed**" if failed else f"all {gates} gates passed", ""] if gates else []
    for label, some in found.items():
        lines += [f"## {one_line(label)}", ""]
        lines += [
            f"- {'**failed**' if v.failed else 'passed'}: {_code(v.gate.text)}: {_plain(v.reason)}"
            for v in verdicts[label]
        ]
        if turned[label].sentence:
            lines += ["", f"Of all tasks {_plain(turned[label].sentence)}."]
        for title, rows in _folded(some):
            table = [f"| {' | '.join(HEADINGS)} |", f"| {' | '.join('---' for _ in HEADINGS)} |"]
            table += [f"| {' | '.join(_plain(cell) for cell in row)} |" for row in rows_of(rows)]
            wrapped = ["<details>", f"<summary>{_plain(title)}</summary>", "", *table, "", "</details>"]
            lines += ["", *(wrapped if title else table)]
        lines.append("")
    return "\n".join(lines)


def as_junit(verdicts: Mapping[str, Sequence[Verdict]], turned: Mapping[str, Turned]) -> str:
    """Return the gates as JUnit XML, for CI services.

    Each evaluation is a test suite and each gate a test case, by the schema of Jenkins' xUnit plug-in
    (``junit-10.xsd``). The text of a failure also names the tasks whose outcome changed.
    """
    root = ElementTree.Element("testsuites", name="marft compare")
    for label, some in verdicts.items():
        failures = str(sum(verdict.failed for verdict in some))
        suite = ElementTree.SubElement(
            root, "testsuite", name=one_line(label), tests=str(len(some)), failures=failures, errors="0"
        )
        for verdict in some:
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"marft.{one_line(label)}", name=one_line(verdict.gate.text)
            )
            reason = one_line(verdict.reason)
            if verdict.failed:
                ElementTree.SubElement(case, "failure", message=reason, type="gate").text = "; of all tasks ".join(
                    filter(None, (reason, turned[label].sentence))
                )
            else:
                ElementTree.SubElement(case, "system-out").text = reason
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _folded(found: Sequence[Change]) -> Iterator[tuple[str, list[Change]]]:
    """Yield the changes over all tasks under the title "", then those of each cohort under its name."""
    for cohort, some in groupby(found, lambda change: change.cohort):
        yield "" if cohort == "all" else cohort, list(some)


def _plain(text: str) -> str:
    """Escape text for literal display in GitHub Markdown, also inside a table cell."""
    return re.sub(r"([\\`*_{}\[\]<>#|~@])", r"\\\1", one_line(text)).replace("\\_", "_")


def _code(text: str) -> str:
    return "`" + one_line(text).replace("`", "'") + "`"


def rows_of(found: Sequence[Change]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each change, in the order of ``HEADINGS``."""
    for cohort, metric, difference in found:
        value, change = shown(metric)
        low_high = difference.interval
        interval = f"{change(low_high[0])} to {change(low_high[1])}" if low_high else ""
        named = f"{difference.tasks}" if cohort == "all" else f"{difference.tasks}, {cohort}"
        yield named, metric, value(difference.before), value(difference.after), change(difference.gain), interval
