"""Sides that can be compared, and which of a group make pairs: best against worst, by rank, or all that differ."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from marft.common.types import Action, ActionKey
from marft.rewards.groups import EQUAL, compare, members
from marft.trainer.interfaces import Comparison, CreditInputs, Floats

Pairing = Literal["extremes", "ranked", "all"]
Weighing = Literal["equal", "gap"]


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """An attempt, an agent's part of one, or a single action: what it is compared with, and by what."""

    group: Hashable
    agent: str  # whose; "" of all
    earned: float
    cost: float  # what is taken off for its KL
    actions: tuple[ActionKey, ...]  # that are trained

    @property
    def net(self) -> float:
        return self.earned - self.cost


def trained_of(inputs: CreditInputs, actions: Sequence[Action]) -> tuple[ActionKey, ...]:
    """Keys of the actions whose policies learn, and in which there was anything to decide."""
    return tuple(action.key for action in actions if inputs.trains(action) and not action.settled)


def comparisons(
    sides: Sequence[Side], pairing: Pairing, weighing: Weighing
) -> tuple[list[Comparison], dict[str, float]]:
    """The pairs of all groups → comparisons, metrics. Two that earned the same tell nothing: they are dropped, and
    counted. A pair without a trained action is none.

    >>> a, b = (Side("t", "", earned, 0.0, (ActionKey("s", "t", n, 0, "a", 0),)) for n, earned in enumerate((0.0, 1.0)))
    >>> found, metrics = comparisons([a, b], "extremes", "equal")
    >>> found[0].better == b.actions, metrics["preference/pairs"], metrics["preference/equal_pairs"]
    (True, 1.0, 0.0)
    """
    keys = [(side.group, side.agent) for side in sides]
    _, metrics = compare(np.array([side.earned for side in sides]), keys)
    found: list[Comparison] = []
    equal = 0
    for group in members(keys):
        for better, worse in _pairs([sides[index] for index in group], pairing):
            if abs(better.earned - worse.earned) < EQUAL:
                equal += 1
            elif better.actions or worse.actions:
                gap = max(0.0, better.net - worse.net) if weighing == "gap" else 1.0
                found.append(Comparison(better.actions, worse.actions, better.agent, gap))
    return _of_mean_one(found), {
        **metrics, "preference/pairs": float(len(found)), "preference/equal_pairs": float(equal),
    }  # fmt: skip


def _pairs(group: Sequence[Side], pairing: Pairing) -> Iterator[tuple[Side, Side]]:
    """Better and worse sides of a group by what they earned, and where that is alike by what is left of it net of
    costs; among equals the earlier attempt is the better one."""
    ordered = sorted(group, key=lambda side: (-side.earned, -side.net))
    if pairing == "all":
        yield from combinations(ordered, 2)
    else:
        count = len(ordered) // 2
        yield from zip(ordered[: min(count, 1) if pairing == "extremes" else count], ordered[::-1], strict=False)


def _of_mean_one(found: Sequence[Comparison]) -> list[Comparison]:
    """Weights over their mean; all equal where that is 0."""
    mean = float(np.mean([pair.weight for pair in found])) if found else 0.0
    return [replace(pair, weight=pair.weight / mean if mean > 0 else 1.0) for pair in found]


def signs(found: Sequence[Comparison], actions: Sequence[Action]) -> tuple[Floats, list[bool]]:
    """For each action the weights of the comparisons that it is on the better side of, less those that it is on the
    worse side of; and whether it is in any."""
    sums: dict[ActionKey, float] = {}
    for pair in found:
        for side, sign in ((pair.better, 1.0), (pair.worse, -1.0)):
            for key in side:
                sums[key] = sums.get(key, 0.0) + sign * pair.weight
    return np.array([sums.get(action.key, 0.0) for action in actions]), [action.key in sums for action in actions]
