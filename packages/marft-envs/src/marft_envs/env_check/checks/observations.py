"""Checks for observations, and for information declared with steps."""

from __future__ import annotations

from collections.abc import Iterator

from marft_envs.env_check.collection import CheckData
from marft_envs.env_check.records import FaultKind
from marft_envs.env_check.report import Finding


def check_observations(data: CheckData) -> Iterator[Finding]:
    """Check that observations are valid texts for roles in the team, and not too long."""
    yield from _faults_of_kind(
        data, "observation", "an observation", "see marft.common.types.Observation for what it may hold"
    )
    longest, longest_record = 0, None
    for candidate in [*data.records, *data.odd_records]:
        for observation in candidate.observations:
            length = max(len(observation.for_role(role)) for role in ("", *observation.views))
            longest, longest_record = (length, candidate) if length > longest else (longest, longest_record)
    if longest_record is not None and longest > data.limits.shown_characters:
        yield Finding(
            "warning",
            f"{longest:,} characters are shown to one agent at a time ({longest_record.name})",
            f"show what a prompt has room for, {data.limits.shown_characters:,} characters; cut what agents said",
        )


def check_step_info(data: CheckData) -> Iterator[Finding]:
    """Check the info in each step for invalid values."""
    yield from _faults_of_kind(data, "declared", "a step", "docs: environments, what a metric needs")


def check_steps(data: CheckData) -> Iterator[Finding]:
    """Check for step results with another type than Step."""
    yield from _faults_of_kind(
        data, "step", "a call", "return marft.common.types.Step with True or False where that is asked for"
    )


def _faults_of_kind(data: CheckData, kind: FaultKind, subject: str, hint: str) -> Iterator[Finding]:
    faults = [(record, fault) for record in data.records for fault in record.faults if fault.kind == kind]
    for record, fault in faults[:1]:
        yield Finding("failure", f"{record.name}: {subject} of {fault.call}() {fault.message}", hint)
