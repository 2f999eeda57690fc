"""Findings, verdicts and reports from environment checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from marft.common.texts import one_line

Grade = Literal["pass", "skipped", "warning", "failure"]
WORST: Sequence[Grade] = ("pass", "skipped", "warning", "failure")


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
class Verdict:
    """Verdict from a check: its findings; empty if it passed."""

    check: str
    about: str  # condition that passes the check
    findings: tuple[Finding, ...] = ()

    @property
    def grade(self) -> Grade:
        """Return the grade of the worst finding."""
        return max((one.grade for one in self.findings), key=WORST.index, default="pass")


@dataclass(frozen=True, slots=True)
class Report:
    """Report on an environment.

    Args:
        environment: name of the environment.
        verdicts: verdicts in report order.
        episodes: number of played episodes.
        seconds: duration of all checks, in seconds.
        numbers: measurements: number of tasks, and times in seconds.
    """

    environment: str
    verdicts: tuple[Verdict, ...]
    episodes: int
    seconds: float
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Return True if no check failed. Warnings are allowed."""
        return not self.of("failure")

    def of(self, grade: Grade) -> list[str]:
        """Return the names of checks with this grade."""
        return [verdict.check for verdict in self.verdicts if verdict.grade == grade]

    @property
    def in_short(self) -> str:
        """Return a summary line: number of checks, and checks with findings."""
        graded = (("failed", self.of("failure")), ("warned", self.of("warning")))
        found = [f"{len(names)} {word} ({', '.join(names)})" for word, names in graded if names]
        return (
            f"{one_line(self.environment)}: {len(self.verdicts)} checks, {', '.join(found) or 'all passed'}; "
            f"{self.episodes} episodes in {self.seconds:.1f} s"
        )

    def __str__(self) -> str:
        """Return findings with remedies, and the summary."""
        found = [
            f"{verdict.check}: {finding.grade}: {finding.cause}" + (f"\n  → {finding.remedy}" if finding.remedy else "")
            for verdict in self.verdicts
            for finding in verdict.findings
            if finding.grade in ("warning", "failure")
        ]
        return "\n".join([*found, self.in_short])

    def table(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        verdicts = [
            {"check": v.check, "grade": v.grade, "findings": list(map(asdict, v.findings))} for v in self.verdicts
        ]
        return {
            "environment": self.environment, "passed": self.passed, "episodes": self.episodes, "seconds": self.seconds,
            "numbers": self.numbers, "checks": verdicts,
        }  # fmt: skip


def some(names: Iterable[str], most: int = 3) -> str:
    """List the first names, and count the rest.

    >>> some(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
