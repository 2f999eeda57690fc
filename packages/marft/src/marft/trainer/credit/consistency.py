"""Consistency measures: how similarly two rewards rank the attempts of a group.

Each measure is a pure function with maximum 1 for identical rankings. Rewards that differ by less than ``EQUAL`` are
ties, independent of rounding in their sums. If one reward is tied over the whole group, every measure is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from marft.config.interfaces.credit import Floats
from marft.rewards.groups import EQUAL_TOLERANCE

Consistency = Literal["spearman", "kendall", "ndcg"]
Levels = npt.NDArray[np.int64]  # number of distinct smaller values, per element


def spearman(local: Floats, global_rewards: Floats) -> float:
    """Return Spearman's ρ, −1 to 1: the correlation between ranks; ties share their mean rank.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0]))
    0.5

    Args:
        local: local reward of each attempt, shape [N].
        global_rewards: global reward of each attempt, shape [N].
    """
    a, b = dense_ranks(local), dense_ranks(global_rewards)
    if not a.any() or not b.any():
        return 0.0
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def kendall(local: Floats, global_rewards: Floats) -> float:
    """Return Kendall's τ_b, −1 to 1 (Kendall 1945).

    τ_b is the number of concordant pairs minus the number of discordant pairs. The difference is divided by the
    geometric mean of the numbers of pairs without a tie in each reward.

    >>> round(kendall(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0])), 3)
    0.333

    Args:
        local: local reward of each attempt, shape [N].
        global_rewards: global reward of each attempt, shape [N].
    """
    a, b = dense_ranks(local), dense_ranks(global_rewards)
    if not a.any() or not b.any():
        return 0.0
    x, y = (np.sign(np.subtract.outer(values, values)) for values in (a, b))
    return float((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))


def ndcg(local: Floats, global_rewards: Floats) -> float:
    """Return the normalized discounted cumulative gain, in (0, 1] (Järvelin and Kekäläinen 2002).

    Attempts are ordered by local reward, best first. The gain of an attempt is its global reward minus the group's
    minimum. The discount is 1 / log₂(1 + place). The sum of discounted gains is divided by the sum in the ideal order.
    Ties share the mean discount of their places (McSherry and Najork 2008).

    The reverse order has a value above 0. For two attempts it is 1 / log₂ 3.

    >>> round(ndcg(np.array([2.0, 1.0]), np.array([0.0, 5.0])), 3)
    0.631

    Args:
        local: local reward of each attempt, shape [N].
        global_rewards: global reward of each attempt, shape [N].
    """
    a, b = dense_ranks(local), dense_ranks(global_rewards)
    if not a.any() or not b.any():
        return 0.0
    gains = global_rewards - global_rewards.min()
    discounts = 1.0 / np.log2(np.arange(len(gains)) + 2.0)
    shared = np.array([discounts[(a > value).sum() : (a >= value).sum()].mean() for value in a])
    return float((gains * shared).sum() / (np.sort(gains)[::-1] * discounts).sum())


CONSISTENCY_FUNCTIONS: Mapping[Consistency, Callable[[Floats, Floats], float]] = {
    "spearman": spearman,
    "kendall": kendall,
    "ndcg": ndcg,
}


def dense_ranks(values: Floats) -> Levels:
    """Return the dense rank of each value, starting at 0, with ties closer than ``EQUAL``.

    Neighbors in sorted order that differ by less than ``EQUAL`` share a rank.

    >>> dense_ranks(np.array([0.3, 5.0, 0.1 + 0.2])).tolist()
    [0, 1, 0]
    """
    order = np.argsort(values)
    ranks = np.zeros(len(values), np.int64)
    ranks[order[1:]] = np.cumsum(np.diff(values[order]) >= EQUAL_TOLERANCE)
    return ranks


def _ranks(ranks: Levels) -> Floats:
    """Return mean ranks plus a constant offset of one half, which no correlation depends on."""
    counts = np.bincount(ranks)
    ends = np.cumsum(counts)
    means: Floats = ends - counts / 2.0
    return means[ranks]
