"""Checks for observations, and for information declared with steps."""

from __future__ import annotations

from collections.abc import Iterator

from marft_envs.vetting.evidence import Evidence
from marft_envs.vetting.findings import Finding
from marft_envs.vetting.plays import Wrong


def observations(evidence: Evidence) -> Iterator[Finding]:
    """Check that observations are valid texts for roles in the team, and not too long."""
    yield from _faulty(
        evidence, "observation", "an observation", "see marft.common.types.Observation for what it may hold"
    )
    longest, play = 0, None
    for candidate in [*evidence.plays, *evidence.odd]:
        for shown in candidate.shown:
            length = max(len(shown.seen_by(role)) for role in ("", *shown.views))
            longest, play = (length, candidate) if length > longest else (longest, play)
    if play is not None and longest > evidence.limits.shown_characters:
        yield Finding(
            "warning",
            f"{longest:,} characters are shown to one agent at a time ({play.name})",
            f"show what a prompt has room for, {evidence.limits.shown_characters:,} characters; cut what agents said",
        )


def declared(evidence: Evidence) -> Iterator[Finding]:
    """Check the info in each step for invalid values."""
    yield from _faulty(evidence, "declared", "a step", "docs: environments, what a metric needs")


def steps(evidence: Evidence) -> Iterator[Finding]:
    """Check for step results with another type than Step."""
    yield from _faulty(
        evidence, "step", "a call", "return marft.common.types.Step with True or False where that is asked for"
    )


def _faulty(evidence: Evidence, wrong: Wrong, what: str, remedy: str) -> Iterator[Finding]:
    found = [(play, fault) for play in evidence.plays for fault in play.faults if fault.wrong == wrong]
    for play, fault in found[:1]:
        yield Finding("failure", f"{play.name}: {what} of {fault.call}() {fault.said}", remedy)
