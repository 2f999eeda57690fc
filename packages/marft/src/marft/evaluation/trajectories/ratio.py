"""Additive representation of a metric: amount and denominator in one episode, for the team and each agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from marft.common.types import Action, Episode

TEAM = ""


class Ratio(NamedTuple):
    """Metric numerator and denominator in an episode.

    Over a batch, both are summed: ``Σ amount / Σ out_of``.

    >>> Ratio.total([Ratio(1, 4), Ratio(0, 2)])
    Ratio(amount=1.0, out_of=6.0)
    """

    amount: float
    out_of: float = 1.0

    @classmethod
    def total(cls, parts: Iterable[Ratio]) -> Ratio:
        """Return the sum of several ratios, with amounts and denominators added separately."""
        amount = out_of = 0.0
        for part in parts:
            amount, out_of = amount + part.amount, out_of + part.out_of
        return cls(amount, out_of)

    @property
    def value(self) -> float | None:
        """Metric value. The value is None if the denominator is 0."""
        return self.amount / self.out_of if self.out_of else None


Ratios = Mapping[str, Ratio]  # by role; TEAM is the whole team
Measure = Callable[[Episode, Sequence[str]], Ratios]  # arguments: an episode and the roles of the team


def of_team(amount: float | None) -> Ratios:
    """Return a team metric with one value for each episode, or nothing for None."""
    return {} if amount is None else {TEAM: Ratio(amount)}


def by_agent(actions: Iterable[Action], of: Callable[[Action], tuple[float, float]]) -> Ratios:
    """Sum amounts and denominators over actions, for each agent and for the team.

    Actions with a denominator of 0 are ignored.

    Args:
        of: returns the amount and the denominator of an action.
    """
    sums: dict[str, Ratio] = {}
    for action in actions:
        amount, out_of = of(action)
        if out_of:
            for role in (TEAM, action.agent):
                before = sums.get(role, Ratio(0.0, 0.0))
                sums[role] = Ratio(before.amount + amount, before.out_of + out_of)
    return sums


def an_episode(amounts: Iterable[tuple[str, float]], roles: Sequence[str]) -> Ratios:
    """Sum amounts of agents over an episode, for each role and for the team; a role without amounts has 0."""
    sums = dict.fromkeys(roles, 0.0)
    total = 0.0
    for role, amount in amounts:
        total += amount
        if role in sums:
            sums[role] += amount
    return {TEAM: Ratio(total), **{role: Ratio(amount) for role, amount in sums.items()}}
