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

    Student's interval with the bootstrap's standard error (Efron and Tibshirani 1993, §12.5): what was found, ``∓`` the
    deviation of the resampled differences times ``√(N/(N−1)) t``, as those spread too little for few tasks (Hesterberg
    2015, §4.1). Of metrics that a few tasks decide, such as costs, it covers the truth more often at 50 tasks than
    quantiles of the differences do, expanded, corrected (BCa) or studentized.

    Args:
        parts: amounts and what they are out of, before and after, [N, M, 4] for M metrics.
        counts: [R, N].
    """
    tasks, metrics, _ = parts.shape
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = np.einsum("rn,nmk->mrk", counts, parts, optimize=True)
        differences, centres = difference(sums), difference(parts.sum(0))  # [M, R], [M]
    found: list[tuple[float, float] | None] = []
    for metric in range(metrics):
        whole, centre = differences[metric][np.isfinite(differences[metric])], float(centres[metric])
        if len(whole) < len(counts) / 2 or np.ptp(whole) < 1e-12:
            found.append(None)
        else:
            reach = widened(tasks, level) * float(whole.std())
            found.append((centre - reach, centre + reach))
    return found


def difference(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """What was gained, of the sums of amounts and of what they are out of, before and after, [..., 4] → [...]."""
    gained: npt.NDArray[np.float64] = sums[..., 2] / sums[..., 3] - sums[..., 0] / sums[..., 1]
    return gained


def widened(tasks: int, level: float) -> float:
    """How many deviations of resampled differences an interval reaches to each side.

    >>> round(widened(10**6, 0.95), 3), round(widened(50, 0.95), 3)
    (1.96, 2.03)
    """
    return math.sqrt(tasks / (tasks - 1)) * student_t((1 + level) / 2, tasks - 1)


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
