"""Preference pair sides, and the pairing within a group: extremes, by rank, or every unequal pair."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from marft.common.types import Action, ActionKey
from marft.config.interfaces.credit import Comparison, CreditInputs, Floats
from marft.rewards.groups import EQUAL_TOLERANCE, group_indices, normalize_by_group

Pairing = Literal["extremes", "ranked", "all"]
PairWeighting = Literal["equal", "gap"]


@dataclass(frozen=True, slots=True, eq=False)
class PairSide:
    """Side of a pair: an attempt, an agent's part of an attempt, or a single action.

    Args:
        group: key of the group; sides are compared within a group.
        agent: agent of the actions; "" for the whole team.
        reward: reward before KL costs.
        cost: KL cost.
        actions: keys of the trained actions.
    """

    group: Hashable
    agent: str  # "" for the whole team
    reward: float
    cost: float  # KL cost
    actions: tuple[ActionKey, ...]  # trained actions

    @property
    def net_reward(self) -> float:
        """Reward net of KL costs."""
        return self.reward - self.cost


def select_trained(inputs: CreditInputs, actions: Iterable[Action]) -> list[Action]:
    """Return the trainable actions: trained policy, and at least one free decision."""
    return [action for action in actions if inputs.is_trained(action) and not action.is_forced]


def trained_keys(inputs: CreditInputs, actions: Iterable[Action]) -> tuple[ActionKey, ...]:
    """Return the keys of the trainable actions."""
    return tuple(action.key for action in select_trained(inputs, actions))


def build_pairs(
    sides: Sequence[PairSide], pairing: Pairing, weighting: PairWeighting
) -> tuple[list[Comparison], dict[str, float]]:
    """Return the preference pairs within each group, and metrics.

    Pairs of equal rewards carry no information; they are dropped and counted. Pairs without a trained action are
    dropped too. Weights are scaled to mean 1.

    >>> keys = [(ActionKey("s", "t", n, 0, "a", 0),) for n in range(2)]
    >>> a, b = (PairSide("t", "", reward, 0.0, key) for reward, key in zip((0.0, 1.0), keys, strict=True))
    >>> found, metrics = build_pairs([a, b], "extremes", "equal")
    >>> found[0].better == b.actions, metrics["preference/pairs"], metrics["preference/equal_pairs"]
    (True, 1.0, 0.0)

    Args:
        sides: sides of all groups.
        pairing: choice of pairs within a group.
        weighting: weight of a pair: 1, or the difference in net reward.
    """
    keys = [(side.group, side.agent) for side in sides]
    _, metrics = normalize_by_group(np.array([side.reward for side in sides]), keys)
    pairs: list[Comparison] = []
    equal = 0
    for group in group_indices(keys):
        for better, worse in _pairs([sides[index] for index in group], pairing):
            if better.reward - worse.reward < EQUAL_TOLERANCE:
                equal += 1
            elif better.actions or worse.actions:
                gap = max(0.0, better.net_reward - worse.net_reward) if weighting == "gap" else 1.0
                pairs.append(Comparison(better.actions, worse.actions, better.agent, gap))
    return _normalize_weights(pairs), {
        **metrics,
        "preference/pairs": float(len(pairs)),
        "preference/equal_pairs": float(equal),
    }


def _pairs(group: Sequence[PairSide], pairing: Pairing) -> Iterator[tuple[PairSide, PairSide]]:
    """Yield the better and the worse side of each pair in a group.

    Sides are ordered by reward, then by reward net of costs. Equal sides keep their order, so the earlier attempt
    counts as better.
    """
    ordered = sorted(group, key=lambda side: (-side.reward, -side.net_reward))
    if pairing == "all":
        yield from combinations(ordered, 2)
    else:
        count = len(ordered) // 2
        yield from zip(ordered[: min(count, 1) if pairing == "extremes" else count], ordered[::-1], strict=False)


def _normalize_weights(pairs: Sequence[Comparison]) -> list[Comparison]:
    """Scale weights to mean 1; use weight 1 if the mean is 0."""
    mean = float(np.mean([pair.weight for pair in pairs])) if pairs else 0.0
    return [replace(pair, weight=pair.weight / mean if mean > 0 else 1.0) for pair in pairs]


def compute_action_weights(pairs: Sequence[Comparison], actions: Sequence[Action]) -> tuple[Floats, list[bool]]:
    """Return the signed weight per action, shape [actions], and a flag for membership in a pair.

    The signed weight is the sum of pair weights on the better side, minus the sum on the worse side.
    """
    sums: dict[ActionKey, float] = {}
    for pair in pairs:
        for side, sign in ((pair.better, 1.0), (pair.worse, -1.0)):
            for key in side:
                sums[key] = sums.get(key, 0.0) + sign * pair.weight
    return np.array([sums.get(action.key, 0.0) for action in actions]), [action.key in sums for action in actions]
