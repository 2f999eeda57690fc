"""Anytime-valid tests and confidence sequences for the mean of bounded observations, by betting.

Observations are in [0, 1]. Take ``H: E[X_t | past] ≤ m`` and a bet ``b`` in [0, 1) that is fixed before any
observation. The capital ``K_t(b) = Π_{i≤t} (1 + b (X_i / m − 1))`` is never negative and, under H, a supermartingale
that begins at 1. The average over several bets is one too. By Ville's inequality ``P(sup_t K_t ≥ 1/α) ≤ α``, so the
test may be evaluated after every observation. (Waudby-Smith and Ramdas, "Estimating means of bounded random variables
by betting", JRSS-B 86, 2024: the capital process with λ = b / m, and a grid of constant bets that is averaged over,
their grid Kelly.) Their grid is even. Ours is geometric, so that some bet suits small effects. Any grid that is fixed
beforehand keeps the inequality.

All ``m`` with ``sup K_t(m) < 1/α`` form a one-sided confidence sequence of level ``1 − α``, because ``K_t(m)`` falls as
``m`` rises.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BET_FRACTIONS: Floats = 0.95 * 2.0 ** (-np.arange(20) / 2)  # [G]: fraction of the capital staked on each observation
TESTED_MEANS: Floats = np.linspace(0.0025, 0.9975, 399)  # [M]: means tested for a confidence sequence


def log_factors(x: Floats | float, means: Floats | float) -> Floats:
    """Return the log growth factor for each bet's capital: ``log(1 + b (x / m − 1))``.

    Args:
        x: observations in [0, 1], [...].
        means: tested means in (0, 1), [...]; broadcast against ``x``.

    Returns:
        [..., G].
    """
    gain = np.asarray(x, np.float64) / np.asarray(means, np.float64) - 1
    factors: Floats = np.log1p(BET_FRACTIONS * gain[..., None])
    return factors


def log_capital(logs: Floats) -> Floats:
    """Return the logarithm of the mean capital over all bets.

    Args:
        logs: log capital of each bet, [..., G].

    Returns:
        [...].
    """
    max_log = logs.max(-1)
    mean_log: Floats = max_log + np.log(np.exp(logs - max_log[..., None]).mean(-1))
    return mean_log


def p_value(max_log_capital: float) -> float:
    """Return the anytime-valid p-value for the largest capital so far: ``min(1, 1 / sup K)``.

    >>> p_value(0.0), round(p_value(np.log(20.0)), 6)
    (1.0, 0.05)

    Args:
        max_log_capital: logarithm of the largest capital so far.
    """
    return float(min(1.0, np.exp(-max_log_capital)))
