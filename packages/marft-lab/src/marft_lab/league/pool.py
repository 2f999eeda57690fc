"""Who is in a pool of past versions, how strong each is held to be, and whom a task is played against. Pure.

Matches are drawn as in fictitious self-play (Brown 1951; Heinrich et al. 2015), or rather against those that are not
beaten yet (prioritised: AlphaStar, Vinyals et al. 2019, f_hard(x) = (1 − x)^p).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from marft.trainer.interfaces import Floats
from marft_lab.league.elo import K, expected_score

MEMORY = 0.9  # of what earlier matches count, a step: the learner they were played by is another one
PRIOR = 1.0  # drawn matches that a win rate begins with


@dataclass(frozen=True, slots=True)
class Member:
    """One version in a pool.

    >>> Member("rival@1", step=10, won=3.0, played=4.0).win_rate
    0.7
    """

    slot: str  # the policy that it is loaded as
    step: int  # of the run, when it joined
    rating: float = 0.0  # Elo, when it joined; the untuned version has 0
    won: float = 0.0  # matches that the learner won of late, draws for one half
    played: float = 0.0

    @property
    def win_rate(self) -> float:
        """The learner's against it, with a drawn match before the first."""
        return (self.won + PRIOR / 2) / (self.played + PRIOR)


@dataclass(frozen=True, slots=True)
class Pool:
    """The versions, oldest first, and the learner's own rating."""

    members: tuple[Member, ...]
    rating: float = 0.0

    @property
    def hardest(self) -> Member:
        return min(self.members, key=lambda member: member.win_rate)

    def joined(self, slots: Sequence[str], step: int) -> Pool:
        """The pool with the learner as it is now; where it is full, without the version that is missed least."""
        members = self.members
        if len(members) == len(slots):
            if len(slots) == 1:
                return self
            gone = superfluous([member.step for member in members])
            members = (*members[:gone], *members[gone + 1 :])
        taken = {member.slot for member in members}
        slot = next(slot for slot in slots if slot not in taken)
        return replace(self, members=(*members, Member(slot, step, self.rating)))

    def with_results(self, scores: Mapping[str, Sequence[float]]) -> Pool:
        """The pool after a step's matches.

        Args:
            scores: by slot, of every match against it: 1 won, 0.5 drawn, 0 lost.
        """
        members = tuple(
            replace(
                member,
                won=MEMORY * member.won + sum(scores.get(member.slot, ())),
                played=MEMORY * member.played + len(scores.get(member.slot, ())),
            )
            for member in self.members
        )
        gained = [
            score - expected_score(self.rating, member.rating)
            for member in self.members
            for score in scores.get(member.slot, ())
        ]
        moved = K * sum(gained) / len(gained) if gained else 0.0
        return Pool(members, self.rating + moved)

    def until(self, step: int) -> Pool:
        """Without versions that joined after a step to which the run has gone back."""
        return replace(self, members=tuple(member for member in self.members if member.step <= step))

    def drawn(self, uniform: float, choose: Literal["uniform", "latest", "prioritised"], power: float) -> Member:
        """Whom a task is played against.

        Args:
            uniform: a number from 0 to below 1.
        """
        if choose == "latest":
            return self.members[-1]
        bounds = np.cumsum(self.chances(choose, power))
        return self.members[min(int(np.searchsorted(bounds, uniform, side="right")), len(self.members) - 1)]

    def chances(self, choose: str, power: float) -> Floats:
        """The chance of each member, [M]. With its prior no win rate is ever 1, so that everybody has one."""
        weights = np.ones(len(self.members))
        if choose == "prioritised":
            left = np.array([1.0 - member.win_rate for member in self.members])
            weights = (left / left.max()) ** power  # of which one is 1, whatever the power
        return np.asarray(weights / weights.sum(), np.float64)


def superfluous(steps: Sequence[int]) -> int:
    """The place of the version that is missed least: neither the first nor the newest, and with the smallest gap
    between its neighbours, so that those that stay are spread over the run.

    >>> superfluous([0, 10, 15, 20]), superfluous([0, 5])
    (2, 1)
    """
    inner = range(1, len(steps) - 1)
    return min(inner, key=lambda place: steps[place + 1] - steps[place - 1], default=len(steps) - 1)
