"""Shares over tasks with several attempts, with intervals clustered by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marft.evaluation.intervals import Z95, effective_trials, wilson_share_interval
from marft.evaluation.trajectories.attempts import pass_all, pass_at
from marft.evaluation.trajectories.ratio import Ratio

Interval = tuple[float, float]


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
