"""Betting against a bounded mean: capital that hardly ever grows large unless the mean is larger than was said.

Observations are in [0, 1]. For ``H: E[X_t | past] ≤ m`` and a bet ``b`` in [0, 1) that is laid down before anything is
seen, ``K_t(b) = Π_{i≤t} (1 + b (X_i / m − 1))`` is never negative and, under H, a supermartingale that begins at 1. So
is the average over several bets, and by Ville's inequality ``P(sup_t K_t ≥ 1/α) ≤ α``: one may look after every
observation. (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS-B 86, 2024: the
capital process with λ = b / m, and a grid of constant bets that is averaged over, their grid Kelly.) Their grid is
even; ours is geometric, so that small effects find a bet too: any grid that is fixed beforehand keeps the inequality.

What is known of a mean is what no capital was won against: all ``m`` with ``sup K_t(m) < 1/α`` make a one-sided
confidence sequence of level ``1 − α``, for ``K_t(m)`` falls as ``m`` rises.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BETS: Floats = 0.95 * 2.0 ** (-np.arange(20) / 2)  # [G]: of what is at hand, how much is laid on each observation
MEANS: Floats = np.linspace(0.0025, 0.9975, 399)  # [M]: means that are bet against for a confidence sequence


def log_factors(x: Floats | float, means: Floats | float) -> Floats:
    """By how much an observation multiplies what each bet has: ``log(1 + b (x / m − 1))``.

    Args:
        x: in [0, 1], [...].
        means: in (0, 1), [...]; the two are broadcast.

    Returns:
        [..., G].
    """
    gain = np.asarray(x, np.float64) / np.asarray(means, np.float64) - 1
    factors: Floats = np.log1p(BETS * gain[..., None])
    return factors


def log_capital(logs: Floats) -> Floats:
    """The logarithm of the average capital of all bets.

    Args:
        logs: of each bet's capital, [..., G].

    Returns:
        [...].
    """
    most = logs.max(-1)
    whole: Floats = most + np.log(np.exp(logs - most[..., None]).mean(-1))
    return whole


def p_value(log_most: float) -> float:
    """The anytime-valid p-value of the largest capital so far: ``min(1, 1 / sup K)``.

    >>> p_value(0.0), round(p_value(np.log(20.0)), 6)
    (1.0, 0.05)
    """
    return float(min(1.0, np.exp(-log_most)))
