"""Confidence intervals of success rates and of mean rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Z95 = 1.959964
Z95_ONE_SIDED = 1.644854


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95 % interval of a proportion (Wilson 1927); (0, 1) without trials.

    >>> tuple(round(bound, 3) for bound in wilson(200, 500))
    (0.358, 0.444)
    """
    return wilson_of(successes / trials, trials) if trials else (0.0, 1.0)


def wilson_of(p: float, trials: float, z: float = Z95) -> tuple[float, float]:
    """Wilson's interval of a proportion of so many trials, which need not be whole."""
    z2 = z**2
    centre = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = z / (1 + z2 / trials) * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of a mean, by the normal approximation, ``mean ± 1.96 s/√n``; None where the values do not differ:
    that none of them did says nothing of how far others would.

    Of a difference on the same tasks, give the differences.

    >>> mean_interval([0.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    (0.253..., 1.079...)
    """
    numbers = np.asarray(values, np.float64)
    if len(numbers) < 2 or numbers.min() == numbers.max():
        return None
    centre, half = float(numbers.mean()), Z95 * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return centre - half, centre + half


def paired_difference(before: Sequence[bool], after: Sequence[bool]) -> tuple[float, tuple[float, float]]:
    """``after − before`` on the same tasks, with a 95 % interval (Wald, with Agresti and Min's +2 correction).

    >>> paired_difference([False, False, True], [True, True, True])[0]
    0.6666666666666666
    """
    n = len(before)
    assert n == len(after)
    if n == 0:
        return 0.0, (-1.0, 1.0)
    gained = sum(b < a for b, a in zip(before, after, strict=True))
    lost = sum(b > a for b, a in zip(before, after, strict=True))
    up, down, total = gained + 0.5, lost + 0.5, n + 2
    centre = (up - down) / total
    half = Z95 * math.sqrt(max(0.0, up + down - (up - down) ** 2 / total)) / total
    return (gained - lost) / n, (max(-1.0, centre - half), min(1.0, centre + half))


def bounds_of_gain(differences: Sequence[float], z: float = Z95_ONE_SIDED) -> tuple[float, float]:
    """Bounds of the mean difference of shares on the same tasks, each of 95 % by itself; (−1, 1) without tasks.

    The adjusted Wald interval of Bonett and Price 2012: one more task has gained all and one more has lost all, so
    ``d̃ ± z √((Σ d² + 2)/(n + 2) − d̃²) / √(n + 2)`` with ``d̃ = Σ d / (n + 2)``. So it says something of tasks none of
    which differ. Theirs is of tasks that are solved or not; that ``d`` may be a difference of shares of attempts is our
    reading: those spread less.

    Where all that differ do so in one direction, as rare events do, that is too sure; there the bound is at least the
    exact one of so many of all tasks (Clopper and Pearson 1934).

    >>> [round(bound, 3) for bound in bounds_of_gain([0.0] * 50)]
    [-0.058, 0.058]

    Args:
        differences: of each task, from −1 to 1.
    """
    if not len(differences):
        return -1.0, 1.0
    n = len(differences) + 2
    centre = sum(differences) / n
    half = z * math.sqrt(max(0.0, (sum(d * d for d in differences) + 2) / n - centre**2) / n)
    low, high = centre - half, centre + half
    if min(differences) >= 0:
        high = max(high, at_most(sum(differences), len(differences), z))
    if max(differences) <= 0:
        low = min(low, -at_most(-sum(differences), len(differences), z))
    return max(-1.0, low), min(1.0, high)


def at_most(successes: float, trials: int, z: float = Z95_ONE_SIDED) -> float:
    """The exact one-sided upper bound of a proportion (Clopper and Pearson 1934): the largest at which so few successes
    are as likely as ``z`` says, by bisection. Parts of a success count as a whole one.

    >>> round(at_most(0, 59), 4)
    0.0495
    """
    count, rare = math.ceil(successes - 1e-9), math.erfc(z / math.sqrt(2)) / 2
    if count >= trials:
        return 1.0
    ways = [math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in range(count + 1)]
    low, high = count / trials, 1.0
    for _ in range(60):
        p = (low + high) / 2
        some, none = math.log(p), math.log1p(-p)
        chance = math.fsum(math.exp(way + k * some + (trials - k) * none) for k, way in enumerate(ways))
        low, high = (p, high) if chance > rare else (low, p)
    return high
