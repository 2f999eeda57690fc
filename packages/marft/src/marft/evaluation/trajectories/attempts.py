"""Metrics over several attempts at a task: pass@k, pass^k and avg@k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb

from marft.common.types import Episode


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
