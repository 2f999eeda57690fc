"""Checks for speed, blocking and external access."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from marft_envs.vetting.evidence import Evidence
from marft_envs.vetting.findings import Finding, some
from marft_envs.vetting.plays import Call

IDLE = 0.5  # CPU time per wall-clock time, below which a thread waits


def seconds_of(evidence: Evidence) -> dict[str, list[float]]:
    """Return the best time for each call, in seconds, by kind of call.

    Each call was made several times. The best time excludes other load on the machine.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for pair in _pairs(evidence):
        found[pair[0].name].append(min(call.seconds for call in pair))
    return dict(found)


def quick(evidence: Evidence) -> Iterator[Finding]:
    """Check for slow calls and slow loading."""
    limits = evidence.limits
    if evidence.loaded.seconds > limits.load_seconds:
        yield Finding(
            "warning",
            f"the tasks of all splits take {evidence.loaded.seconds:.1f} s",
            "every run waits for them; draw fewer",
        )
    slow = []
    for name, seconds in seconds_of(evidence).items():
        if median(seconds) > limits.middle_seconds or max(seconds) > limits.longest_seconds:
            slow.append(f"{name}() takes {median(seconds):.3g} s in the middle, {max(seconds):.3g} s at most")
    if slow:
        yield Finding(
            "warning",
            "; ".join(slow),
            "do what is slow once, in tasks(); or play in processes beside the run (rollout.processes)",
        )


def yielding(evidence: Evidence) -> Iterator[Finding]:
    """Check that no call blocks its thread for long without awaiting."""
    held: dict[str, list[Call]] = defaultdict(list)
    for pair in _pairs(evidence):
        shortest = min(pair, key=lambda call: call.held)
        if shortest.held > evidence.limits.hold_seconds:
            held[shortest.name].append(shortest)
    for name, calls in held.items():
        worst = max(calls, key=lambda call: call.held)
        waits = worst.busy < IDLE * worst.held
        yield Finding(
            "warning",
            f"{name}() keeps its thread for {1000 * worst.held:.0f} ms without awaiting, in {len(calls)} calls: it "
            f"{'sleeps, or waits for a disk or a network' if waits else 'computes'}",
            "await asyncio.sleep(…), or a library that awaits"
            if waits
            else "compute it once, when tasks are drawn, or in a process of its own",
        )


def at_home(evidence: Evidence) -> Iterator[Finding]:
    """Check that sessions open no connections and start no programs."""
    found = list(dict.fromkeys(evidence.outside))
    if found:
        yield Finding(
            "warning",
            f"a session {some(found)}",
            "what is answered there follows from no seed, and may be slow or gone: bring it along, or record it",
        )


def _pairs(evidence: Evidence) -> Iterator[Sequence[Call]]:
    """Yield the repetitions of each call."""
    for plays in zip(evidence.calm, evidence.again, evidence.reseeded, strict=True):
        made = [play.calls for play in plays]
        if len({tuple(call.name for call in calls) for calls in made}) == 1:
            yield from zip(*made, strict=True)
