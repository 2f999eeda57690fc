"""Several attempts at a task: whether one of k would solve it, whether all would, and how often one does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb

from marft.common.types import Episode


def pass_at(k: int, attempts: int, solved: int) -> float:
    """``pass@k = 1 − C(n − c, k) / C(n, k)``: how likely one of ``k`` attempts, drawn from ``n`` of which ``c`` solved
    the task, is one of those; unbiased (Chen et al. 2021, eq. 1).

    >>> pass_at(1, 4, 1), pass_at(2, 4, 1), pass_at(4, 4, 1)
    (0.25, 0.5, 1.0)
    """
    assert 1 <= k <= attempts
    return 1.0 - comb(attempts - solved, k) / comb(attempts, k)


def pass_all(k: int, attempts: int, solved: int) -> float:
    """``pass^k = C(c, k) / C(n, k)``: how likely all of ``k`` attempts, drawn from ``n`` of which ``c`` solved the
    task, are among those; unbiased (Yao et al. 2024, section 3).

    >>> pass_all(1, 4, 2), pass_all(2, 4, 3), pass_all(4, 4, 3)
    (0.5, 0.5, 0.0)
    """
    assert 1 <= k <= attempts
    return comb(solved, k) / comb(attempts, k)


def attempt_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """``pass@k`` and ``pass^k`` for 2, 4, 8, … attempts, each the mean over the tasks with at least ``k`` of which it
    is known whether they solved it, and ``avg@k``, the mean of ``c / n`` over the tasks of the largest ``k``; nothing
    where no task has two.
    """
    counts = list(solved_of(episodes).values())
    metrics, k = dict[str, float](), 2
    while tasks := [(n, c) for n, c in counts if n >= k]:
        metrics = {name: value for name, value in metrics.items() if name.startswith("pass")}
        metrics[f"pass@{k}"] = sum(pass_at(k, n, c) for n, c in tasks) / len(tasks)
        metrics[f"pass^{k}"] = sum(pass_all(k, n, c) for n, c in tasks) / len(tasks)
        metrics[f"avg@{k}"] = sum(c / n for n, c in tasks) / len(tasks)
        k *= 2
    return metrics


def solved_of(episodes: Sequence[Episode]) -> Mapping[str, tuple[int, int]]:
    """By task: attempts of which it is known whether they solved it, and those that did."""
    counts: dict[str, tuple[int, int]] = {}
    for episode in episodes:
        if episode.success is not None:
            n, c = counts.get(episode.task.id, (0, 0))
            counts[episode.task.id] = n + 1, c + episode.success
    return counts
