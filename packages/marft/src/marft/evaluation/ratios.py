r"""Ratios of sums over tasks, with confidence intervals: the additive form of every metric of an evaluation.

Attempts at the same task are correlated, so intervals are over tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import comb
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from marft.common.types import Action, Episode
from marft.evaluation.intervals import Z95, effective_trials, mean_interval, wilson_share_interval

TEAM = ""
Array = npt.NDArray[np.float64]
Interval = tuple[float, float]


class Ratio(NamedTuple):
    """Metric numerator and denominator in an episode.

    Over a batch, both are summed: ``Σ numerator / Σ denominator``.

    >>> Ratio.total([Ratio(1, 4), Ratio(0, 2)])
    Ratio(numerator=1.0, denominator=6.0)
    """

    numerator: float
    denominator: float = 1.0

    @classmethod
    def total(cls, parts: Iterable[Ratio]) -> Ratio:
        """Return the sum of several ratios, with amounts and denominators added separately."""
        numerator = denominator = 0.0
        for part in parts:
            numerator, denominator = numerator + part.numerator, denominator + part.denominator
        return cls(numerator, denominator)

    @property
    def value(self) -> float | None:
        """Metric value. The value is None if the denominator is 0."""
        return self.numerator / self.denominator if self.denominator else None


Ratios = Mapping[str, Ratio]  # by role; TEAM is the whole team
RatioFunction = Callable[[Episode, Sequence[str]], Ratios]  # arguments: an episode and the roles of the team


def team_ratio(value: float | None) -> Ratios:
    """Return a team metric with one value for each episode, or nothing for None."""
    return {} if value is None else {TEAM: Ratio(value)}


def sum_by_agent(actions: Iterable[Action], count: Callable[[Action], tuple[float, float]]) -> Ratios:
    """Sum amounts and denominators over actions, for each agent and for the team.

    Actions with a denominator of 0 are ignored.

    Args:
        count: returns the amount and the denominator of an action.
    """
    sums: dict[str, Ratio] = {}
    for action in actions:
        numerator, denominator = count(action)
        if denominator:
            for role in (TEAM, action.agent):
                sums[role] = Ratio.total([sums.get(role, Ratio(0.0, 0.0)), Ratio(numerator, denominator)])
    return sums


def sum_amounts(amounts: Iterable[tuple[str, float]], roles: Sequence[str]) -> Ratios:
    """Sum amounts of agents over an episode, for each role and for the team; a role without amounts has 0."""
    sums = dict.fromkeys(roles, 0.0)
    total = 0.0
    for role, value in amounts:
        total += value
        if role in sums:
            sums[role] += value
    return {TEAM: Ratio(total), **{role: Ratio(value) for role, value in sums.items()}}


class PairedDifference(NamedTuple):
    """Metric before and after, on the tasks that both sides have.

    The interval is None if there is only one task or no two tasks differ.
    """

    before: float
    after: float
    interval: tuple[float, float] | None
    tasks: int

    @property
    def gain(self) -> float:
        """Return the metric after minus the metric before."""
        return self.after - self.before


def compare_ratios(
    before: Mapping[str, Ratio], after: Mapping[str, Ratio], only: Collection[str] | None = None, *, level: float = 0.95
) -> PairedDifference | None:
    """Compare a metric on the tasks with values on both sides.

    The result is None if either denominator is 0.

    >>> compare_ratios({"t": Ratio(1, 4)}, {"t": Ratio(1, 2), "u": Ratio(1, 1)})
    PairedDifference(before=0.25, after=0.5, interval=None, tasks=1)

    Args:
        before: ratios by task.
        after: ratios by task.
        only: tasks to compare; None compares all.
        level: confidence level of the interval.
    """
    tasks = sorted(task for task in before.keys() & after.keys() if only is None or task in only)
    total_before, total_after = Ratio.total(before[task] for task in tasks), Ratio.total(after[task] for task in tasks)
    if total_before.value is None or total_after.value is None:
        return None
    parts = np.array([[*before[task], *after[task]] for task in tasks], np.float64)
    shares = bool(((parts[:, ::2] >= 0) & (parts[:, ::2] <= parts[:, 1::2])).all())
    bounds = (-1.0, 1.0) if shares else (-np.inf, np.inf)
    interval = mean_interval(linearize_difference(parts), bounds, level=level)
    return PairedDifference(total_before.value, total_after.value, interval, len(tasks))


def average_ratio(
    ratios: Mapping[str, Ratio], *, level: float = 0.95
) -> tuple[float, tuple[float, float] | None] | None:
    """Return a metric over tasks and its confidence interval.

    The result is None if the denominator is 0. The interval is None if no two tasks differ.

    >>> average_ratio({"t": Ratio(1, 4), "u": Ratio(1, 4)})
    (0.25, None)

    Args:
        ratios: ratios by task.
        level: confidence level of the interval.
    """
    total = Ratio.total(ratios.values())
    if total.value is None:
        return None
    parts = np.array(
        [[0.0, denominator, numerator, denominator] for numerator, denominator in ratios.values()], np.float64
    )
    shares = all(0 <= numerator <= denominator for numerator, denominator in ratios.values())
    bounds = (0.0, 1.0) if shares else (-np.inf, np.inf)
    return total.value, mean_interval(linearize_difference(parts), bounds, level=level)


def linearize_difference(parts: Array) -> Array:
    """Linearize the difference of two ratios, ``Σ a₂ / Σ n₂ − Σ a₁ / Σ n₁``, into one value a task, [N].

    To first order, the mean of the values is the difference and their spread is that of the difference (the
    infinitesimal jackknife; Efron and Tibshirani 1993, §21.3).

    >>> linearize_difference(np.array([[1.0, 2.0, 2.0, 2.0], [0.0, 2.0, 1.0, 2.0]]))
    array([0.5, 0.5])

    Args:
        parts: amounts and denominators of N tasks, before and after, [N, 4].
    """
    n1, n2 = parts[:, 1].mean(), parts[:, 3].mean()
    first, second = parts[:, 0].mean() / n1, parts[:, 2].mean() / n2
    with np.errstate(invalid="ignore"):  # an infinite amount has no interval
        before, after = (parts[:, 0] - first * parts[:, 1]) / n1, (parts[:, 2] - second * parts[:, 3]) / n2
        values: Array = second - first + after - before
    return values


def pass_at(k: int, attempts: int, solved: int) -> float:
    """Return ``pass@k = 1 − C(n − c, k) / C(n, k)``, an unbiased estimate (Chen et al. 2021, eq. 1).

    It is the probability that at least one of ``k`` attempts solves the task, drawn from ``n`` attempts of which ``c``
    solved it.

    >>> pass_at(1, 4, 1), pass_at(2, 4, 1), pass_at(4, 4, 1)
    (0.25, 0.5, 1.0)
    """
    assert 1 <= k <= attempts
    return 1.0 - comb(attempts - solved, k) / comb(attempts, k)


def pass_all(k: int, attempts: int, solved: int) -> float:
    """Return ``pass^k = C(c, k) / C(n, k)``, an unbiased estimate (Yao et al. 2024, section 3).

    It is the probability that all of ``k`` attempts solve the task, drawn from ``n`` attempts of which ``c`` solved it.

    >>> pass_all(1, 4, 2), pass_all(2, 4, 3), pass_all(4, 4, 3)
    (0.5, 0.5, 0.0)
    """
    assert 1 <= k <= attempts
    return comb(solved, k) / comb(attempts, k)


def attempt_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return ``pass@k`` and ``pass^k`` for ``k`` = 2, 4, 8, …, and ``avg@k`` for the largest ``k``.

    Each is a mean over the tasks with at least ``k`` attempts of known success. ``avg@k`` is the mean of ``c / n``. The
    result is empty if no task has two such attempts.
    """
    counts = list(count_solved(episodes).values())
    metrics, k = dict[str, float](), 2
    while tasks := [(n, c) for n, c in counts if n >= k]:
        metrics = {name: value for name, value in metrics.items() if name.startswith("pass")}
        metrics[f"pass@{k}"] = sum(pass_at(k, n, c) for n, c in tasks) / len(tasks)
        metrics[f"pass^{k}"] = sum(pass_all(k, n, c) for n, c in tasks) / len(tasks)
        metrics[f"avg@{k}"] = sum(c / n for n, c in tasks) / len(tasks)
        k *= 2
    return metrics


def count_solved(episodes: Sequence[Episode]) -> Mapping[str, tuple[int, int]]:
    """Return two counts for each task: attempts with known success, and solved attempts."""
    counts: dict[str, tuple[int, int]] = {}
    for episode in episodes:
        if episode.success is not None:
            n, c = counts.get(episode.task.id, (0, 0))
            counts[episode.task.id] = n + 1, c + episode.success
    return counts


def clustered_interval(shares: Sequence[Ratio], attempts: int, z: float = Z95) -> tuple[float, Interval] | None:
    """Return a share over tasks, ``p = Σ a / Σ n``, and its 95 % interval; None if the denominator is 0.

    Attempts at the same task are correlated, so they count less than attempts at different tasks. The interval is
    Wilson's for the effective number of trials (:func:`~marft.evaluation.intervals.effective_trials`). The variance
    between tasks is ``v = N/(N−1) Σ (a − p n)² / (Σ n)²``. The effective number is at least the number of tasks and at
    most that of attempts. With one attempt each, this is Wilson's interval.

    >>> share, (low, high) = clustered_interval([Ratio(1, 2)] * 50 + [Ratio(2, 2)] * 50, 2)
    >>> share, round(low, 3), round(high, 3)
    (0.75, 0.686, 0.805)

    Args:
        shares: ratio of each task, with an amount from 0 to its ``denominator``.
        attempts: maximum number of attempts at a task.
        z: half-width of the interval in standard deviations; the default is that of a 95 % interval.
    """
    shares = [share for share in shares if share.denominator]
    tasks, total = len(shares), Ratio.total(shares)
    if total.value is None:
        return None
    p = total.value
    spread = sum((share.numerator - p * share.denominator) ** 2 for share in shares)
    variance = spread * tasks / (tasks - 1) / total.denominator**2 if tasks > 1 else 0.0
    max_trials = float(tasks * attempts) if 0 < p < 1 else float(tasks)
    trials = (
        min(max(effective_trials(p, variance, tasks - 1, z), float(tasks)), max_trials) if variance > 0 else max_trials
    )
    return p, wilson_share_interval(p, trials, z)


def compute_pass_ratios(counts: Mapping[str, tuple[int, int]], attempts: int) -> dict[str, dict[str, Ratio]]:
    """Return ``pass@k``, ``pass^k`` and ``avg@k`` for each task.

    ``k`` is 2, 4, 8, … and the number of attempts; ``avg@k`` has the number of attempts only. pass@k and pass^k of a
    task need at least ``k`` attempts with known success. The result is empty with one attempt a task.

    Args:
        counts: for each task, the number of attempts with known success, and the number of solved ones.
    """
    k_values = sorted({2**power for power in range(1, attempts.bit_length())} | {attempts} - {1})
    ratios_by_task: dict[str, dict[str, Ratio]] = {}
    for task, (num_known, solved) in counts.items():
        of_task = {f"pass@{k}": Ratio(pass_at(k, num_known, solved)) for k in k_values if k <= num_known}
        of_task |= {f"pass^{k}": Ratio(pass_all(k, num_known, solved)) for k in k_values if k <= num_known}
        if attempts > 1 and num_known:
            of_task[f"avg@{attempts}"] = Ratio(solved / num_known)
        ratios_by_task[task] = of_task
    return ratios_by_task
