"""Paired differences between metrics on the same tasks, with confidence intervals.

Metrics are ratios of sums over tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from marft.evaluation.intervals import mean_interval
from marft.evaluation.trajectories.ratio import Ratio

Array = npt.NDArray[np.float64]


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
    before: Mapping[str, Ratio], after: Mapping[str, Ratio], *, level: float = 0.95
) -> PairedDifference | None:
    """Compare a metric on the tasks with values on both sides.

    The result is None if either denominator is 0.

    >>> compare_ratios({"t": Ratio(1, 4)}, {"t": Ratio(1, 2), "u": Ratio(1, 1)})
    PairedDifference(before=0.25, after=0.5, interval=None, tasks=1)

    Args:
        before: ratios by task.
        after: ratios by task.
        level: confidence level of the interval.
    """
    tasks = sorted(before.keys() & after.keys())
    total_before, total_after = Ratio.total(before[task] for task in tasks), Ratio.total(after[task] for task in tasks)
    if total_before.value is None or total_after.value is None:
        return None
    parts = np.array([[*before[task], *after[task]] for task in tasks], np.float64)
    shares = bool(((parts[:, ::2] >= 0) & (parts[:, ::2] <= parts[:, 1::2])).all())
    bounds = (-1.0, 1.0) if shares else (-np.inf, np.inf)
    return PairedDifference(
        total_before.value,
        total_after.value,
        mean_interval(linearize_difference(parts), bounds, level=level),
        len(tasks),
    )


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
