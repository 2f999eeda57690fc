"""Additive representation of a metric: numerator and denominator in one episode, for the team and each agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from marft.common.types import Action, Episode

TEAM = ""


class Ratio(NamedTuple):
    """Metric numerator and denominator in an episode.

    Over a batch, both are summed: ``Σ numerator / Σ denominator``.

    >>> Ratio.total([Ratio(1, 4), Ratio(0, 2)])
    Ratio(numerator=1.0, denominator=6.0)
    """

    numerator: float
    denominator: float = 1.0

    @classmethod
    def total(cls, parts: Iterable[Ratio]) -> Ratio:
        """Return the sum of several ratios, with amounts and denominators added separately."""
        numerator = denominator = 0.0
        for part in parts:
            numerator, denominator = numerator + part.numerator, denominator + part.denominator
        return cls(numerator, denominator)

    @property
    def value(self) -> float | None:
        """Metric value. The value is None if the denominator is 0."""
        return self.numerator / self.denominator if self.denominator else None


Ratios = Mapping[str, Ratio]  # by role; TEAM is the whole team
RatioFunction = Callable[[Episode, Sequence[str]], Ratios]  # arguments: an episode and the roles of the team


def team_ratio(value: float | None) -> Ratios:
    """Return a team metric with one value for each episode, or nothing for None."""
    return {} if value is None else {TEAM: Ratio(value)}


def sum_by_agent(actions: Iterable[Action], count: Callable[[Action], tuple[float, float]]) -> Ratios:
    """Sum amounts and denominators over actions, for each agent and for the team.

    Actions with a denominator of 0 are ignored.

    Args:
        count: returns the amount and the denominator of an action.
    """
    sums: dict[str, Ratio] = {}
    for action in actions:
        numerator, denominator = count(action)
        if denominator:
            for role in (TEAM, action.agent):
                before = sums.get(role, Ratio(0.0, 0.0))
                sums[role] = Ratio(before.numerator + numerator, before.denominator + denominator)
    return sums


def sum_amounts(amounts: Iterable[tuple[str, float]], roles: Sequence[str]) -> Ratios:
    """Sum amounts of agents over an episode, for each role and for the team; a role without amounts has 0."""
    sums = dict.fromkeys(roles, 0.0)
    total = 0.0
    for role, value in amounts:
        total += value
        if role in sums:
            sums[role] += value
    return {TEAM: Ratio(total), **{role: Ratio(value) for role, value in sums.items()}}
