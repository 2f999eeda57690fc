"""What a metric of one episode is: an amount out of something, for the team and for each agent, that adds up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from marft.common.types import Action, Episode

TEAM = ""


class Ratio(NamedTuple):
    """Numerator and denominator of a metric, in one episode. Over a batch both add up: ``Σ amount / Σ out_of``.

    >>> Ratio.total([Ratio(1, 4), Ratio(0, 2)])
    Ratio(amount=1.0, out_of=6.0)
    """

    amount: float
    out_of: float = 1.0

    @classmethod
    def total(cls, parts: Iterable[Ratio]) -> Ratio:
        """The sum of several, by amount and by what it is out of."""
        amount = out_of = 0.0
        for part in parts:
            amount, out_of = amount + part.amount, out_of + part.out_of
        return cls(amount, out_of)

    @property
    def value(self) -> float | None:
        """The metric; None where it is out of nothing."""
        return self.amount / self.out_of if self.out_of else None


Ratios = Mapping[str, Ratio]  # by role; TEAM is the whole team's
Measure = Callable[[Episode, Sequence[str]], Ratios]  # of an episode of a team of these roles


def of_team(amount: float | None) -> Ratios:
    """One number an episode, where there is one."""
    return {} if amount is None else {TEAM: Ratio(amount)}


def by_agent(actions: Iterable[Action], of: Callable[[Action], tuple[float, float]]) -> Ratios:
    """The sums of amounts and of what they are out of, for each agent and for the team, where they are out of
    anything."""
    sums: dict[str, Ratio] = {}
    for action in actions:
        amount, out_of = of(action)
        if out_of:
            for role in (TEAM, action.agent):
                before = sums.get(role, Ratio(0.0, 0.0))
                sums[role] = Ratio(before.amount + amount, before.out_of + out_of)
    return sums


def an_episode(amounts: Iterable[tuple[str, float]], roles: Sequence[str]) -> Ratios:
    """Amounts of agents, added up: of each role in an episode, 0 where it has none, and of the team."""
    sums = dict.fromkeys(roles, 0.0)
    total = 0.0
    for role, amount in amounts:
        total += amount
        if role in sums:
            sums[role] += amount
    return {TEAM: Ratio(total), **{role: Ratio(amount) for role, amount in sums.items()}}
