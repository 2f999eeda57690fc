"""Registry with every environment check, in report order, and runners for checks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from statistics import median
from typing import NamedTuple, TypeVar

from marft_envs.env_check import episode_checks, task_checks
from marft_envs.env_check.collection import CheckData, ProgressCallback, collect_check_data
from marft_envs.env_check.report import CheckResult, Finding, Report
from marft_envs.env_check.target import CheckTarget, Limits

T = TypeVar("T")
DEFAULT_LIMITS = Limits()


class Check(NamedTuple):
    """Check function on the collected evidence. Most checks need playable episodes."""

    run: Callable[[CheckData], Iterable[Finding]]
    needs_episodes: bool = True


CHECKS: Mapping[str, Check] = {
    "tasks": Check(task_checks.check_readable, needs_episodes=False),
    "tasks stay": Check(task_checks.check_stable, needs_episodes=False),
    "plain data": Check(task_checks.check_portable, needs_episodes=False),
    "splits": Check(task_checks.check_overlap, needs_episodes=False),
    "likeness": Check(task_checks.check_near_duplicates, needs_episodes=False),
    "episodes": Check(episode_checks.check_episodes, needs_episodes=False),
    "observations": Check(episode_checks.check_observations, needs_episodes=False),
    "steps": Check(episode_checks.check_steps, needs_episodes=False),
    "declared": Check(episode_checks.check_step_info, needs_episodes=False),
    "rewards": Check(episode_checks.check_numbers, needs_episodes=False),
    "range": Check(episode_checks.check_range),
    "signal": Check(episode_checks.check_signal),
    "success": Check(episode_checks.check_success),
    "nonsense": Check(episode_checks.check_nonsense),
    "repeatable": Check(episode_checks.check_repeatable, needs_episodes=False),
    "own numbers": Check(episode_checks.check_no_global_random),
    "nothing shared": Check(episode_checks.check_isolation),
    "odd input": Check(episode_checks.check_odd_outputs),
    "endings": Check(episode_checks.check_termination),
    "closing": Check(episode_checks.check_closing, needs_episodes=False),
    "left open": Check(episode_checks.check_leaks),
    "speed": Check(episode_checks.check_slow_calls),
    "thread": Check(episode_checks.check_blocking),
    "outside": Check(episode_checks.check_outside_access),
}


def run_checks(
    target: CheckTarget, limits: Limits = DEFAULT_LIMITS, advance: ProgressCallback = lambda: None
) -> Report:
    """Run every check on an environment.

    Args:
        target: environment with its team.
        limits: limits of the checks.
        advance: function called after each episode.
    """
    started_at = time.perf_counter()
    data = _run_in_thread(collect_check_data(target, limits, advance))
    return build_report(data, time.perf_counter() - started_at)


def build_report(data: CheckData, seconds: float = 0.0) -> Report:
    """Build a report from the evidence.

    Args:
        data: collected evidence.
        seconds: time that its collection took, in seconds.
    """
    verdicts = tuple(_run_check(name, check, data) for name, check in CHECKS.items())
    call_seconds = episode_checks.call_seconds(data)
    numbers = {"tasks": float(len(data.loaded.all_tasks)), "load_seconds": data.loaded.seconds}
    for name, calls in call_seconds.items():
        numbers |= {f"{name}_seconds_middle": median(calls), f"{name}_seconds_longest": max(calls)}
    episode_groups = (data.records, data.repeated, data.reseeded, data.concurrent, data.odd_records)
    return Report(data.target.environment.name, verdicts, sum(map(len, episode_groups)), seconds, numbers)


def _run_check(name: str, check: Check, data: CheckData) -> CheckResult:
    description = (check.run.__doc__ or "").split("\n")[0].removesuffix(".")
    if check.run is not task_checks.check_readable and not data.loaded.all_tasks:
        return CheckResult(name, description, (Finding("skipped", "there are no tasks"),))
    if check.needs_episodes and not data.valid_records:
        return CheckResult(name, description, (Finding("skipped", "no episode could be played to its end"),))
    findings = tuple(check.run(data))
    if name == "repeatable" and not findings and isinstance(data.process_results, str):
        findings = (Finding("skipped", f"the same here; no other process was asked: {data.process_results}"),)
    return CheckResult(name, description, findings)


def _run_in_thread(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine in a new thread and return its result. The caller may already have an event loop.

    Raises:
        BaseException: the coroutine raised it.
    """
    results: list[T] = []
    failed: list[BaseException] = []

    def run_coroutine() -> None:
        try:
            results.append(asyncio.run(coroutine))
        except BaseException as error:  # noqa: BLE001  it is raised again, where it was asked for
            failed.append(error)

    thread = threading.Thread(target=run_coroutine, name="marft-vetting", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)  # the short timeout lets Ctrl-C interrupt the wait
    if failed:
        raise failed[0]
    return results[0]
