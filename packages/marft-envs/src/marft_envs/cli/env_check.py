"""``marft check-env`` and its table of findings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from marft.cli.handlers import progress_bar
from marft.cli.output import OutputMode, open_output
from marft.common.texts import single_line
from marft.config.load import overrides_to_tables
from marft_envs.env_check.report import Grade, Report
from marft_envs.env_check.runner import run_checks
from marft_envs.env_check.target import Limits, find_target

GRADE_STYLES: dict[Grade, str] = {"pass": "green", "skipped": "dim", "warning": "yellow", "failure": "bold red"}


def check_environment(target: str, words: Sequence[str], limits: Limits, output_style: OutputMode) -> bool:
    """Run ``marft check-env`` and return True if no check failed."""
    keys = overrides_to_tables([word.replace("--environment.", "--", 1) for word in words])
    subject = find_target(target, keys)
    with open_output(output_style) as out:
        with progress_bar(f"playing {target}", enabled=not output_style) as advance:
            report = run_checks(subject, limits, advance)
        out.print(_build_table(report), "", report.summary)
        out.emit("checked", **report.to_dict())
    return report.passed


def _build_table(report: Report) -> Table:
    """Build a table with one row per finding; a passed check shows its description."""
    table = Table(box=None, pad_edge=False)
    for column in ("check", "", "what was found"):
        table.add_column(column, no_wrap=column != "what was found", overflow="fold")
    for verdict in report.results:
        if not verdict.findings:
            table.add_row(verdict.check, Text("pass", GRADE_STYLES["pass"]), Text(verdict.description, "dim"))
        for finding in verdict.findings:
            cell = Text(single_line(finding.cause))
            if finding.remedy:
                cell.append(f"\n→ {single_line(finding.remedy)}", "italic")
            table.add_row(verdict.check, Text(finding.grade, GRADE_STYLES[finding.grade]), cell)
    return table
