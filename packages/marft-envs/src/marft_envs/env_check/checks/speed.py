"""Checks for speed, blocking and external access."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from marft_envs.env_check.collection import CheckData
from marft_envs.env_check.records import TimedCall
from marft_envs.env_check.report import Finding, summarize

MAX_IDLE_SHARE = 0.5  # CPU time per wall-clock time, below which a thread waits


def call_seconds(data: CheckData) -> dict[str, list[float]]:
    """Return the best time for each call, in seconds, by kind of call.

    Each call was made several times. The best time excludes other load on the machine.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    for pair in _repeated_calls(data):
        seconds[pair[0].name].append(min(call.seconds for call in pair))
    return dict(seconds)


def check_slow_calls(data: CheckData) -> Iterator[Finding]:
    """Check for slow calls and slow loading."""
    limits = data.limits
    if data.loaded.seconds > limits.load_seconds:
        yield Finding(
            "warning",
            f"the tasks of all splits take {data.loaded.seconds:.1f} s",
            "every run waits for them; draw fewer",
        )
    slow = []
    for name, seconds in call_seconds(data).items():
        if median(seconds) > limits.middle_seconds or max(seconds) > limits.longest_seconds:
            slow.append(f"{name}() takes {median(seconds):.3g} s in the middle, {max(seconds):.3g} s at most")
    if slow:
        yield Finding(
            "warning",
            "; ".join(slow),
            "do what is slow once, in tasks(); or play in processes beside the run (rollout.workers)",
        )


def check_blocking(data: CheckData) -> Iterator[Finding]:
    """Check that no call blocks its thread for long without awaiting."""
    blocking: dict[str, list[TimedCall]] = defaultdict(list)
    for pair in _repeated_calls(data):
        shortest = min(pair, key=lambda call: call.blocking_seconds)
        if shortest.blocking_seconds > data.limits.hold_seconds:
            blocking[shortest.name].append(shortest)
    for name, calls in blocking.items():
        worst = max(calls, key=lambda call: call.blocking_seconds)
        waits = worst.cpu_seconds < MAX_IDLE_SHARE * worst.blocking_seconds
        yield Finding(
            "warning",
            f"{name}() keeps its thread for {1000 * worst.blocking_seconds:.0f} ms without awaiting, in {len(calls)} "
            f"calls: it {'sleeps, or waits for a disk or a network' if waits else 'computes'}",
            "await asyncio.sleep(…), or a library that awaits"
            if waits
            else "compute it once, when tasks are drawn, or in a process of its own",
        )


def check_outside_access(data: CheckData) -> Iterator[Finding]:
    """Check that sessions open no connections and start no programs."""
    accesses = list(dict.fromkeys(data.outside_accesses))
    if accesses:
        yield Finding(
            "warning",
            f"a session {summarize(accesses)}",
            "what is answered there follows from no seed, and may be slow or gone: bring it along, or record it",
        )


def _repeated_calls(data: CheckData) -> Iterator[Sequence[TimedCall]]:
    """Yield the repetitions of each call."""
    for records in zip(data.repeatable, data.repeated, data.reseeded, strict=True):
        calls_by_record = [record.calls for record in records]
        if len({tuple(call.name for call in calls) for calls in calls_by_record}) == 1:
            yield from zip(*calls_by_record, strict=True)
