"""Confidence intervals for success rates and mean rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import special

Z95 = 1.959964
Z95_ONE_SIDED = 1.644854


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a proportion (Wilson 1927); (0, 1) without trials.

    >>> tuple(round(bound, 3) for bound in wilson_interval(200, 500))
    (0.358, 0.444)
    """
    return wilson_share_interval(successes / trials, trials) if trials else (0.0, 1.0)


def wilson_share_interval(p: float, trials: float, z: float = Z95) -> tuple[float, float]:
    """Return Wilson's interval for a proportion. The number of trials may be fractional."""
    z2 = z**2
    center = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = z / (1 + z2 / trials) * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2))
    return max(0.0, center - half), min(1.0, center + half)


def mean_interval(
    values: Sequence[float] | npt.NDArray[np.float64], bounds: tuple[float, float] | None = None, *, level: float = 0.95
) -> tuple[float, float] | None:
    """Return the confidence interval of a mean, or None for fewer than two distinct values.

    For a quantity with finite bounds, it is Wilson's interval for the effective number of trials
    (:func:`effective_trials`), which stays within the bounds. For other quantities, it is the union of Student's
    interval and Hall's interval, which corrects for skewness (:func:`skew_corrected_interval`).

    Simulated coverage of 95 % intervals (``benchmarks/coverage.py``) is 93 to 98 % for normal or moderately skewed data
    with at least 5 values. Data as skewed as an exponential needs at least 10 values. If a few values dominate, such as
    costs that differ tenfold between tasks, 50 values are needed. With fewer values no interval here has its nominal
    coverage. For fewer than 20 values that are 0 or 1, few intervals are possible, and they cover more than 98 %.

    >>> [round(bound, 3) for bound in mean_interval([0.0, 1.0, 0.0, 1.0, 1.0, 1.0])]
    [0.204, 0.94]

    Args:
        values: [N] independent values; for a difference on the same tasks, the differences.
        bounds: least and greatest possible value. The default is (0, 1) if all values lie between 0 and 1, else no
            bounds.
        level: confidence level.
    """
    numbers = np.asarray(values, np.float64)
    if len(numbers) < 2 or not numbers.std() > 1e-12 * np.abs(numbers).max():
        return None
    if bounds is None:
        bounds = (0.0, 1.0) if numbers.min() >= 0 and numbers.max() <= 1 else (-math.inf, math.inf)
    low, high = bounds
    if not math.isfinite(high - low):
        return skew_corrected_interval(numbers, level)
    z, scaled = float(special.ndtri((1 + level) / 2)), (numbers - low) / (high - low)
    variance = float(scaled.var(ddof=1)) / len(scaled)
    p = float(scaled.mean())
    first, last = wilson_share_interval(p, effective_trials(p, variance, len(scaled) - 1, z), z)
    return low + first * (high - low), low + last * (high - low)


def effective_trials(p: float, variance: float, degrees_of_freedom: int, z: float) -> float:
    """Return the effective number of independent trials (Korn and Graubard 1998).

    With this number of trials, the share ``p`` has the given variance. The number is ``p (1 − p) / v``, times ``(z /
    t)²`` because the variance is an estimate with ``degrees_of_freedom`` degrees of freedom.

    Args:
        p: share.
        variance: variance of the share, above 0.
        degrees_of_freedom: degrees of freedom of the variance.
        z: half-width of the interval, in standard deviations.
    """
    t = float(special.stdtrit(degrees_of_freedom, special.ndtr(z)))
    return p * (1 - p) / variance * (z / t) ** 2


def student_interval(values: Sequence[float] | npt.NDArray[np.float64], level: float = 0.95) -> tuple[float, float]:
    """Return Student's confidence interval for the mean of normal data, ``x̄ ± t s/√n``.

    >>> [round(bound, 2) for bound in student_interval([1.0, 2.0, 3.0])]
    [-0.48, 4.48]

    Args:
        values: [N], at least two.
        level: confidence level.
    """
    mean, n = float(np.mean(values)), len(values)
    half_width = float(special.stdtrit(n - 1, (1 + level) / 2)) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return mean - half_width, mean + half_width


def skew_corrected_interval(values: npt.NDArray[np.float64], level: float) -> tuple[float, float]:
    """Return a confidence interval for the mean of skewed data.

    It is the union of Student's interval and that of Hall 1992.

    Hall's interval inverts ``g(T) = T + γT²/3 + γ²T³/27 + γ/6n`` with ``T = (x̄ − μ)/s`` and treats ``√n g(T)`` as
    Student's t.

    The sample skewness γ of few values is too small, and even smaller in samples whose interval misses the mean. It is
    therefore multiplied by ``min(1.4, (n − 3)/5.5)``, chosen by simulation. The factor 1.4 keeps the coverage of
    lognormal data above 93 %. The smaller factors keep intervals of normal data at most 1.3 times as wide as Student's.

    Args:
        values: [N], at least two distinct values.
        level: confidence level.
    """
    n, mean, deviation = len(values), float(values.mean()), float(values.std(ddof=1))
    low, high = student_interval(values, level)
    if n <= 3:
        return low, high
    # uses the unbiased deviation, so it is too small by (n/(n−1))^1.5
    third = float((((values - mean) / deviation) ** 3).mean())
    skewness = min(1.4, (n - 3) / 5.5) * third * n**2 / ((n - 1) * (n - 2))
    if abs(skewness) < 1e-6:
        return low, high

    t = (high - mean) / deviation

    def inverse(y: float) -> float:
        return 3 / skewness * (float(np.cbrt(1 + skewness * (y - skewness / (6 * n)))) - 1)

    return min(low, mean - deviation * inverse(t)), max(high, mean - deviation * inverse(-t))


def paired_difference(before: Sequence[bool], after: Sequence[bool]) -> tuple[float, tuple[float, float]]:
    """Return the mean of ``after − before`` on the same tasks, with a 95 % interval.

    The interval is Wald's with Agresti and Min's +2 correction.

    >>> paired_difference([False, False, True], [True, True, True])[0]
    0.6666666666666666
    """
    n = len(before)
    assert n == len(after)
    if n == 0:
        return 0.0, (-1.0, 1.0)
    num_gained = sum(b < a for b, a in zip(before, after, strict=True))
    num_lost = sum(b > a for b, a in zip(before, after, strict=True))
    up, down, total = num_gained + 0.5, num_lost + 0.5, n + 2
    center = (up - down) / total
    half = Z95 * math.sqrt(up + down - (up - down) ** 2 / total) / total
    return (num_gained - num_lost) / n, (max(-1.0, center - half), min(1.0, center + half))


def gain_bounds(differences: Sequence[float], z: float = Z95_ONE_SIDED) -> tuple[float, float]:
    """Return one-sided bounds for a mean difference of shares on the same tasks, each with 95 % confidence.

    The bounds are (−1, 1) without tasks. They follow the adjusted Wald interval of Bonett and Price 2012. One task with
    a full gain and one with a full loss are added. The interval is ``d̃ ± z √((Σ d² + 2)/(n + 2) − d̃²) / √(n + 2)``
    with ``d̃ = Σ d / (n + 2)``. It therefore has a positive width even if no task differs. Bonett and Price treat tasks
    that are solved or not. We extend it to differences ``d`` between shares of attempts, which vary less.

    If all changes have one direction, as with rare events, this bound is too tight. It is then at least the exact bound
    for that number among all tasks (Clopper and Pearson 1934).

    >>> [round(bound, 3) for bound in gain_bounds([0.0] * 50)]
    [-0.058, 0.058]

    Args:
        differences: difference for each task, from −1 to 1.
    """
    if not len(differences):
        return -1.0, 1.0
    n = len(differences) + 2
    center = sum(differences) / n
    half = z * math.sqrt(max(0.0, (sum(d * d for d in differences) + 2) / n - center**2) / n)
    low, high = center - half, center + half
    if min(differences) >= 0:
        high = max(high, proportion_upper_bound(sum(differences), len(differences), z))
    if max(differences) <= 0:
        low = min(low, -proportion_upper_bound(-sum(differences), len(differences), z))
    return max(-1.0, low), min(1.0, high)


def proportion_upper_bound(successes: float, trials: int, z: float = Z95_ONE_SIDED) -> float:
    """Return the exact one-sided upper bound of a proportion (Clopper and Pearson 1934).

    A fractional number of successes is rounded up.

    >>> round(proportion_upper_bound(0, 59), 4)
    0.0495
    """
    count = math.ceil(successes - 1e-9)
    return 1.0 if count >= trials else float(special.betaincinv(count + 1, trials - count, special.ndtr(z)))
