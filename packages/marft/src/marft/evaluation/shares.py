"""Shares of tasks that were attempted several times, with intervals that draw tasks and not attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marft.evaluation.intervals import Z95, effective_trials, wilson_of
from marft.evaluation.trajectories.attempts import pass_all, pass_at
from marft.evaluation.trajectories.ratio import Ratio

Interval = tuple[float, float]


def clustered(shares: Sequence[Ratio], attempts: int, z: float = Z95) -> tuple[float, Interval] | None:
    """A share over tasks, ``p = Σ a / Σ n``, and its 95 % interval; None where it is out of nothing.

    Attempts at one task are alike, and count for less than as many tasks: Wilson's interval of the effective number of
    trials (:func:`~marft.evaluation.intervals.effective_trials`), where ``v = N/(N−1) Σ (a − p n)² / (Σ n)²`` is the
    variance between tasks; at least the number of tasks, at most that of attempts. With one attempt each that is
    Wilson's interval.

    >>> share, (low, high) = clustered([Ratio(1, 2)] * 50 + [Ratio(2, 2)] * 50, 2)
    >>> share, round(low, 3), round(high, 3)
    (0.75, 0.686, 0.805)

    Args:
        shares: of each task, from 0 to its ``out_of``.
        attempts: at each task, at most.
        z: how many deviations the interval reaches, in place of those of 95 %.
    """
    shares = [share for share in shares if share.out_of]
    tasks, total = len(shares), Ratio.total(shares)
    if total.value is None:
        return None
    p = total.value
    spread = sum((share.amount - p * share.out_of) ** 2 for share in shares)
    variance = spread * tasks / (tasks - 1) / total.out_of**2 if tasks > 1 else 0.0
    most = float(tasks * attempts) if 0 < p < 1 else float(tasks)
    trials = min(max(effective_trials(p, variance, tasks - 1, z), float(tasks)), most) if variance > 0 else most
    return p, wilson_of(p, trials, z)


def passes(counts: Mapping[str, tuple[int, int]], attempts: int) -> dict[str, dict[str, Ratio]]:
    """By task, ``pass@k`` and ``pass^k`` for ``k`` = 2, 4, 8, … and the number of attempts, and ``avg@k`` for that
    number; of tasks with as many attempts whose success is known. Nothing where a task is attempted once.

    Args:
        counts: by task, attempts whose success is known, and those that solved it.
    """
    wanted = sorted({2**power for power in range(1, attempts.bit_length())} | {attempts} - {1})
    found: dict[str, dict[str, Ratio]] = {}
    for task, (known, solved) in counts.items():
        of_task = {f"pass@{k}": Ratio(pass_at(k, known, solved)) for k in wanted if k <= known}
        of_task |= {f"pass^{k}": Ratio(pass_all(k, known, solved)) for k in wanted if k <= known}
        if attempts > 1 and known:
            of_task[f"avg@{attempts}"] = Ratio(solved / known)
        found[task] = of_task
    return found
