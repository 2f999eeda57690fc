"""How consistently two rewards rank the attempts of a group: pure functions of both, each 1 where they rank alike.

Rewards that differ by less than ``EQUAL`` are tied, however they were added up. Where either ranks nothing, for all of
it is tied, every function is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from marft.rewards.groups import EQUAL
from marft.trainer.interfaces import Floats

Consistency = Literal["spearman", "kendall", "ndcg"]
Levels = npt.NDArray[np.int64]  # how many different values are below each


def spearman(local: Floats, whole: Floats) -> float:
    """Spearman's ρ, −1 to 1: the correlation of ranks, of ties their mean.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0]))
    0.5
    """
    a, b = levels(local), levels(whole)
    if not a.any() or not b.any():
        return 0.0
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def kendall(local: Floats, whole: Floats) -> float:
    """Kendall's τ_b, −1 to 1: pairs that both rank alike less those ranked otherwise, over the geometric mean of the
    numbers of pairs that each of them ranks (Kendall 1945).

    >>> round(kendall(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0])), 3)
    0.333
    """
    a, b = levels(local), levels(whole)
    if not a.any() or not b.any():
        return 0.0
    x, y = (np.sign(np.subtract.outer(one, one)) for one in (a, b))
    return float((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))


def ndcg(local: Floats, whole: Floats) -> float:
    """Normalised discounted cumulative gain, above 0 to 1: attempts in the order of their local reward, the best first,
    gain what they earned more of the global one than the group's worst, over log₂(1 + place) (Järvelin and Kekäläinen
    2002), over what the best order would. Ties share the mean of their places' discounts (McSherry and Najork 2008).

    The reverse order is not worth 0: of two attempts it is 1 / log₂ 3.

    >>> round(ndcg(np.array([2.0, 1.0]), np.array([0.0, 5.0])), 3)
    0.631
    """
    a, b = levels(local), levels(whole)
    if not a.any() or not b.any():
        return 0.0
    gains = whole - whole.min()
    discounts = 1.0 / np.log2(np.arange(len(gains)) + 2.0)
    shared = np.array([discounts[(a > own).sum() : (a >= own).sum()].mean() for own in a])
    return float((gains * shared).sum() / (np.sort(gains)[::-1] * discounts).sum())


CONSISTENCIES: Mapping[Consistency, Callable[[Floats, Floats], float]] = {
    "spearman": spearman, "kendall": kendall, "ndcg": ndcg,
}  # fmt: skip


def levels(values: Floats) -> Levels:
    """How many different values are below each, by steps of at least ``EQUAL`` in their order.

    >>> levels(np.array([0.3, 5.0, 0.1 + 0.2])).tolist()
    [0, 1, 0]
    """
    order = np.argsort(values, kind="stable")
    found = np.zeros(len(values), np.int64)
    found[order[1:]] = np.cumsum(np.diff(values[order]) >= EQUAL)
    return found


def _ranks(of: Levels) -> Floats:
    """Mean ranks, each half a rank too high: no correlation sees that."""
    counts = np.bincount(of)
    ends = np.cumsum(counts)
    means: Floats = ends - counts / 2.0
    return means[of]
