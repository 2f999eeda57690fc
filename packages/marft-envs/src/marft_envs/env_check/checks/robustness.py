"""Checks for robustness: errors, odd inputs, endless episodes and leaked resources."""

from __future__ import annotations

from collections.abc import Iterator

from marft_envs.env_check.collection import CheckData
from marft_envs.env_check.report import Finding, summarize

ERROR_KINDS = ("raised", "hung")


def check_episodes(data: CheckData) -> Iterator[Finding]:
    """Check that ordinary episodes run without errors and timeouts."""
    faults = [(record, fault) for record in data.records for fault in record.faults if fault.kind in ERROR_KINDS]
    for record, fault in faults[:1]:
        verb = "raised" if fault.kind == "raised" else "hung:"
        yield Finding(
            "failure",
            f"{record.name}: {fault.call}() {verb} {fault.message}",
            f"put right what {fault.call}() does there: an episode in which that happens is lost",
        )


def check_odd_outputs(data: CheckData) -> Iterator[Finding]:
    """Check that odd model outputs cause neither errors, timeouts nor invalid results."""
    known_faults = {(fault.kind, fault.call) for record in data.records for fault in record.faults}
    faults = [
        (record, fault)
        for record in data.odd_records
        for fault in record.faults
        if (fault.kind, fault.call) not in known_faults and fault.kind != "close"
    ]
    if faults:
        record, fault = faults[0]
        verb = {"raised": "raised", "hung": "hung:"}.get(fault.kind, "was wrong: it")
        others = f"; and {summarize([other.player for other, _ in faults[1:]])}" if len(faults) > 1 else ""
        yield Finding(
            "failure",
            f"{record.name}: {fault.call}() {verb} {fault.message}{others}",
            "a model's mistake is no error: tell it in the next observation, and let it cost what the rules say",
        )


def check_termination(data: CheckData) -> Iterator[Finding]:
    """Check that episodes end without an external limit."""
    records = data.valid_records
    if records and not any(record.ended for record in records):
        yield Finding(
            "failure",
            f"none of {len(records)} episodes ended within {data.max_steps} steps",
            "return terminated=True when the task is over, and truncated=True when it has taken too long; where it "
            "takes more steps than that, allow them: max_steps of [rollout] in its recipe",
        )
        return
    unended = [
        record.name for record in [*records, *data.odd_records] if record.is_valid and record.steps and not record.ended
    ]
    if unended:
        yield Finding(
            "warning",
            f"{len(unended)} episodes did not end within {data.max_steps} steps: {summarize(unended, 1)}",
            "end an episode that comes to nothing with truncated=True, after a number of steps that is a key",
        )


def check_closing(data: CheckData) -> Iterator[Finding]:
    """Check that sessions close without errors, at the end and before."""
    for record in [*data.records, *data.odd_records]:
        for fault in record.faults:
            if fault.kind == "close":
                yield Finding(
                    "failure",
                    f"{record.name}: close() raised {fault.message}",
                    "close what was opened, also where nothing was",
                )
                return


def check_leaks(data: CheckData) -> Iterator[Finding]:
    """Check that finished episodes leave no threads, processes or files open."""
    episodes = len(data.repeatable)
    grown = [f"{count} {kind}" for kind, count in data.leaks.items() if count >= max(1, episodes // 2)]
    if grown:
        yield Finding(
            "failure", f"after {episodes} episodes there are {', '.join(grown)} more", "let go of them in close()"
        )
