"""``marft check-env`` and its table of findings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from marft.cli.commands import bar
from marft.cli.output import How, output
from marft.common.texts import one_line
from marft.config.load import tables_of
from marft_envs.vetting.check import check
from marft_envs.vetting.findings import Grade, Report
from marft_envs.vetting.limits import Limits
from marft_envs.vetting.subject import subject_of

STYLES: dict[Grade, str] = {"pass": "green", "skipped": "dim", "warning": "yellow", "failure": "bold red"}


def check_environment(target: str, words: Sequence[str], limits: Limits, how: How) -> bool:
    """Run ``marft check-env`` and return True if no check failed."""
    keys = tables_of([word.replace("--environment.", "--", 1) for word in words])
    subject = subject_of(target, keys)
    with output(how) as out:
        with bar(f"playing {target}", shown=not how) as advance:
            report = check(subject, limits, advance)
        out.say(_table(report), "", report.in_short)
        out.tell("checked", **report.table())
    return report.passed


def _table(report: Report) -> Table:
    """Build a table with one row per finding; a passed check shows its description."""
    table = Table(box=None, pad_edge=False)
    for column in ("check", "", "what was found"):
        table.add_column(column, no_wrap=column != "what was found", overflow="fold")
    for verdict in report.verdicts:
        if not verdict.findings:
            table.add_row(verdict.check, Text("pass", STYLES["pass"]), Text(verdict.about, "dim"))
        for finding in verdict.findings:
            said = Text(one_line(finding.cause))
            if finding.remedy:
                said.append(f"\n→ {one_line(finding.remedy)}", "italic")
            table.add_row(verdict.check, Text(finding.grade, STYLES[finding.grade]), said)
    return table
