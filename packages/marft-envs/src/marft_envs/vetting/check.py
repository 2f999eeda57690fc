"""Registry with every environment check, in report order, and runners for checks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple, TypeVar

from marft_envs.vetting.checks import enduring, leakage, repeating, rewards, shown, speed, tasks
from marft_envs.vetting.evidence import Advance, Evidence, gather
from marft_envs.vetting.findings import Finding, Report, Verdict
from marft_envs.vetting.limits import Limits
from marft_envs.vetting.subject import Subject

T = TypeVar("T")
USUAL = Limits()


class Check(NamedTuple):
    """Check function on the collected evidence. Most checks need playable episodes."""

    judge: Callable[[Evidence], Iterable[Finding]]
    needs_episodes: bool = True


CHECKS: Mapping[str, Check] = {
    "tasks": Check(tasks.readable, needs_episodes=False),
    "tasks stay": Check(tasks.stable, needs_episodes=False),
    "plain data": Check(tasks.portable, needs_episodes=False),
    "splits": Check(leakage.overlap, needs_episodes=False),
    "likeness": Check(leakage.likeness, needs_episodes=False),
    "episodes": Check(enduring.playable, needs_episodes=False),
    "observations": Check(shown.observations, needs_episodes=False),
    "steps": Check(shown.steps, needs_episodes=False),
    "declared": Check(shown.declared, needs_episodes=False),
    "rewards": Check(rewards.numbers, needs_episodes=False),
    "range": Check(rewards.in_range),
    "signal": Check(rewards.telling),
    "success": Check(rewards.success),
    "nonsense": Check(rewards.earned),
    "repeatable": Check(repeating.same_again, needs_episodes=False),
    "own numbers": Check(repeating.own_numbers),
    "nothing shared": Check(repeating.nothing_shared),
    "odd input": Check(enduring.unmoved),
    "endings": Check(enduring.ending),
    "closing": Check(enduring.closing, needs_episodes=False),
    "left open": Check(enduring.left_open),
    "speed": Check(speed.quick),
    "thread": Check(speed.yielding),
    "outside": Check(speed.at_home),
}


def check(subject: Subject, limits: Limits = USUAL, advance: Advance = lambda: None) -> Report:
    """Run every check on an environment.

    Args:
        subject: environment with its team.
        limits: limits of the checks.
        advance: function called after each episode.
    """
    began = time.perf_counter()
    evidence = _apart(gather(subject, limits, advance))
    return report(evidence, time.perf_counter() - began)


def report(evidence: Evidence, seconds: float = 0.0) -> Report:
    """Build a report from the evidence.

    Args:
        evidence: collected evidence.
        seconds: time that its collection took, in seconds.
    """
    verdicts = tuple(_verdict(name, one, evidence) for name, one in CHECKS.items())
    took = speed.seconds_of(evidence)
    numbers = {"tasks": float(len(evidence.loaded.everything)), "load_seconds": evidence.loaded.seconds}
    for name, calls in took.items():
        numbers |= {f"{name}_seconds_middle": median(calls), f"{name}_seconds_longest": max(calls)}
    rounds = (evidence.plays, evidence.again, evidence.reseeded, evidence.together, evidence.odd)
    return Report(evidence.subject.environment.name, verdicts, sum(map(len, rounds)), seconds, numbers)


def _verdict(name: str, check: Check, evidence: Evidence) -> Verdict:
    about = (check.judge.__doc__ or "").split("\n")[0].removesuffix(".")
    if check.judge is not tasks.readable and not evidence.loaded.everything:
        return Verdict(name, about, (Finding("skipped", "there are no tasks"),))
    if check.needs_episodes and not evidence.played:
        return Verdict(name, about, (Finding("skipped", "no episode could be played to its end"),))
    findings = tuple(check.judge(evidence))
    if name == "repeatable" and not findings and isinstance(evidence.fresh, str):
        findings = (Finding("skipped", f"the same here; no other process was asked: {evidence.fresh}"),)
    return Verdict(name, about, findings)


def _apart(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new thread and return its result. The caller may already have an event loop.

    Raises:
        BaseException: the coroutine raised it.
    """
    came: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            came.append(asyncio.run(coroutine))
        except BaseException as error:  # noqa: BLE001  it is raised again, where it was asked for
            failed.append(error)

    thread = threading.Thread(target=run, name="marft-vetting", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)  # the short timeout lets Ctrl-C interrupt the wait
    if failed:
        raise failed[0]
    return came[0]
