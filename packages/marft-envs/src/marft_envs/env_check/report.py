"""Findings, verdicts and reports from environment checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from marft.common.texts import single_line

Grade = Literal["pass", "skipped", "warning", "failure"]
GRADE_ORDER: Sequence[Grade] = ("pass", "skipped", "warning", "failure")


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding from a check.

    >>> Finding("failure", "tasks 1 and 7 have the same id", "give each task its own").grade
    'failure'

    Args:
        grade: severity.
        cause: description of the problem.
        remedy: suggested fix; "" if none.
    """

    grade: Grade
    cause: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Verdict from a check: its findings; empty if it passed."""

    check: str
    description: str  # condition that passes the check
    findings: tuple[Finding, ...] = ()

    @property
    def grade(self) -> Grade:
        """Return the grade of the worst finding."""
        return max((finding.grade for finding in self.findings), key=GRADE_ORDER.index, default="pass")


@dataclass(frozen=True, slots=True)
class Report:
    """Report on an environment.

    Args:
        environment: name of the environment.
        results: verdicts in report order.
        episodes: number of played episodes.
        seconds: duration of all checks, in seconds.
        numbers: measurements: number of tasks, and times in seconds.
    """

    environment: str
    results: tuple[CheckResult, ...]
    episodes: int
    seconds: float
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Return True if no check failed. Warnings are allowed."""
        return not self.checks_with_grade("failure")

    def checks_with_grade(self, grade: Grade) -> list[str]:
        """Return the names of checks with this grade."""
        return [verdict.check for verdict in self.results if verdict.grade == grade]

    @property
    def summary(self) -> str:
        """Return a summary line: number of checks, and checks with findings."""
        graded = (("failed", self.checks_with_grade("failure")), ("warned", self.checks_with_grade("warning")))
        counts = [f"{len(names)} {word} ({', '.join(names)})" for word, names in graded if names]
        return (
            f"{single_line(self.environment)}: {len(self.results)} checks, {', '.join(counts) or 'all passed'}; "
            f"{self.episodes} episodes in {self.seconds:.1f} s"
        )

    def __str__(self) -> str:
        """Return findings with remedies, and the summary."""
        lines = [
            f"{verdict.check}: {finding.grade}: {finding.cause}" + (f"\n  → {finding.remedy}" if finding.remedy else "")
            for verdict in self.results
            for finding in verdict.findings
            if finding.grade in ("warning", "failure")
        ]
        return "\n".join([*lines, self.summary])

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON."""
        results = [
            {"check": v.check, "grade": v.grade, "findings": list(map(asdict, v.findings))} for v in self.results
        ]
        return {
            "environment": self.environment,
            "passed": self.passed,
            "episodes": self.episodes,
            "seconds": self.seconds,
            "numbers": self.numbers,
            "checks": results,
        }


def summarize(names: Iterable[str], limit: int = 3) -> str:
    """List the first names, and count the rest.

    >>> summarize(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    listed = list(names)
    suffix = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + suffix
