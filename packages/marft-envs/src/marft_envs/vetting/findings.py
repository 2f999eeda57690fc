"""What was found of an environment, check by check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from marft.common.texts import one_line

Grade = Literal["pass", "skipped", "warning", "failure"]
WORST: Sequence[Grade] = ("pass", "skipped", "warning", "failure")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check has found.

    >>> Finding("failure", "tasks 1 and 7 have the same id", "give each task its own").grade
    'failure'
    """

    grade: Grade
    cause: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check says: nothing was found, or what was."""

    check: str
    about: str  # what passes
    findings: tuple[Finding, ...] = ()

    @property
    def grade(self) -> Grade:
        """That of the worst finding."""
        return max((one.grade for one in self.findings), key=WORST.index, default="pass")


@dataclass(frozen=True, slots=True)
class Report:
    """What all checks say of an environment.

    Args:
        environment: its name.
        episodes: how many were played.
        numbers: what was measured, in seconds, characters and counts.
    """

    environment: str
    verdicts: tuple[Verdict, ...]
    episodes: int
    seconds: float
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether no check failed; warnings may be."""
        return not self.of("failure")

    def of(self, grade: Grade) -> list[str]:
        """Names of the checks with this grade."""
        return [verdict.check for verdict in self.verdicts if verdict.grade == grade]

    @property
    def in_short(self) -> str:
        """One line: how many checks there were, and which have found something."""
        graded = (("failed", self.of("failure")), ("warned", self.of("warning")))
        found = [f"{len(names)} {word} ({', '.join(names)})" for word, names in graded if names]
        return (
            f"{one_line(self.environment)}: {len(self.verdicts)} checks, {', '.join(found) or 'all passed'}; "
            f"{self.episodes} episodes in {self.seconds:.1f} s"
        )

    def __str__(self) -> str:
        """What was found, with remedies, and all of it in short."""
        found = [
            f"{verdict.check}: {finding.grade}: {finding.cause}" + (f"\n  → {finding.remedy}" if finding.remedy else "")
            for verdict in self.verdicts
            for finding in verdict.findings
            if finding.grade in ("warning", "failure")
        ]
        return "\n".join([*found, self.in_short])

    def table(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        verdicts = [
            {"check": v.check, "grade": v.grade, "findings": list(map(asdict, v.findings))} for v in self.verdicts
        ]
        return {
            "environment": self.environment, "passed": self.passed, "episodes": self.episodes, "seconds": self.seconds,
            "numbers": self.numbers, "checks": verdicts,
        }  # fmt: skip


def some(names: Iterable[str], most: int = 3) -> str:
    """The first of many things, and how many more there are.

    >>> some(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
