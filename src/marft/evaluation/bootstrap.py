"""How sure a difference on the same tasks is: paired bootstrap intervals of metrics that are ratios of sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from marft.evaluation.trajectories.ratio import Ratio

RESAMPLES = 4000
Counts = npt.NDArray[np.float64]  # [R, N]: how often each of N tasks is in each of R resamples


class Difference(NamedTuple):
    """A metric before and after, on the tasks that both sides have, and what it gained. The interval is absent where
    the tasks do not tell: there is one, or no two of them differ."""

    before: float
    after: float
    interval: tuple[float, float] | None
    tasks: int

    @property
    def gain(self) -> float:
        return self.after - self.before


@lru_cache(8)
def resamples(tasks: int, seed: int = 0, number: int = RESAMPLES) -> Counts:
    """Tasks drawn with replacement, as many as there are, ``number`` times → how often each was drawn, [R, N]."""
    drawn = np.random.default_rng(seed).multinomial(tasks, np.full(tasks, 1 / tasks), size=number)
    return drawn.astype(np.float64)


def paired(
    before: Mapping[str, Ratio], after: Mapping[str, Ratio], *, level: float = 0.95, seed: int = 0
) -> Difference | None:
    """A metric of the tasks that both sides have, by task; None where either is out of nothing there.

    >>> paired({"t": Ratio(1, 4)}, {"t": Ratio(1, 2), "u": Ratio(1, 1)})
    Difference(before=0.25, after=0.5, interval=None, tasks=1)
    """
    tasks = sorted(before.keys() & after.keys())
    one, two = Ratio.total(before[task] for task in tasks), Ratio.total(after[task] for task in tasks)
    if one.value is None or two.value is None:
        return None
    parts = np.array([[*before[task], *after[task]] for task in tasks], np.float64)
    interval = interval_of(parts[:, None], resamples(len(tasks), seed), level)[0] if len(tasks) > 1 else None
    return Difference(one.value, two.value, interval, len(tasks))


def interval_of(
    parts: npt.NDArray[np.float64], counts: Counts, level: float = 0.95
) -> Sequence[tuple[float, float] | None]:
    """Intervals of ``Σ a₂ / Σ n₂ − Σ a₁ / Σ n₁`` over the same resampled tasks, one a metric.

    The expanded percentile interval (Hesterberg 2015, §4.1): quantiles of the resampled differences at
    ``Φ(∓√(N/(N−1)) t)``, as the plain ones are too narrow for few tasks.

    Args:
        parts: amounts and what they are out of, before and after, [N, M, 4] for M metrics.
        counts: [R, N].
    """
    _, metrics, _ = parts.shape
    sums = np.einsum("rn,nmk->mrk", counts, parts, optimize=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        differences = sums[..., 2] / sums[..., 3] - sums[..., 0] / sums[..., 1]  # [M, R]
    low = expanded(len(parts), level)
    found: list[tuple[float, float] | None] = []
    for metric in range(metrics):
        whole = differences[metric][np.isfinite(differences[metric])]
        if len(whole) < len(counts) / 2 or np.ptp(whole) < 1e-12:
            found.append(None)
        else:
            found.append((float(np.quantile(whole, low)), float(np.quantile(whole, 1 - low))))
    return found


def expanded(tasks: int, level: float) -> float:
    """The lower quantile of the expanded percentile interval.

    >>> round(expanded(10**6, 0.95), 4), round(expanded(50, 0.95), 4)
    (0.025, 0.0212)
    """
    wide = math.sqrt(tasks / (tasks - 1)) * student_t((1 + level) / 2, tasks - 1)
    return NormalDist().cdf(-wide)


def student_t(p: float, freedom: int) -> float:
    """The quantile of Student's t, to a percent from 3 degrees of freedom on (Abramowitz and Stegun 26.7.5).

    >>> round(student_t(0.975, 49), 3), round(student_t(0.975, 4), 2)
    (2.01, 2.77)
    """
    z = NormalDist().inv_cdf(p)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
