"""Pool of past versions: membership, ratings and choice of opponents, as pure functions.

Opponents are drawn uniformly as in fictitious self-play (Brown 1951; Heinrich et al. 2015), or with priority for
opponents with a low win rate of the learner. The priority is AlphaStar's
``f_hard(x) = (1 − x)^p`` (Vinyals et al. 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from marft.trainer.interfaces import Floats
from marft_lab.league.elo import K, expected_score

MEMORY = 0.9  # decay of earlier match counts per step, because the learner changes
PRIOR = 1.0  # weight of the win-rate prior, in drawn matches


@dataclass(frozen=True, slots=True)
class Member:
    """Version in a pool.

    >>> Member("rival@1", step=10, won=3.0, played=4.0).win_rate
    0.7
    """

    slot: str  # name of the policy with the version's weights
    step: int  # training step of the version
    rating: float = 0.0  # Elo rating at joining; 0 for the untuned version
    won: float = 0.0  # recent wins of the learner, with decay; a draw counts one half
    played: float = 0.0

    @property
    def win_rate(self) -> float:
        """Win rate of the learner against this version, with a prior of one draw."""
        return (self.won + PRIOR / 2) / (self.played + PRIOR)


@dataclass(frozen=True, slots=True)
class Pool:
    """Pool of versions, oldest first, with the learner's rating."""

    members: tuple[Member, ...]
    rating: float = 0.0

    @property
    def hardest(self) -> Member:
        """Version with the lowest win rate of the learner."""
        return min(self.members, key=lambda member: member.win_rate)

    def joined(self, slots: Sequence[str], step: int) -> Pool:
        """Return the pool with the current learner; a full pool drops its most redundant version.

        Args:
            slots: names of the policies for pool versions.
            step: training step of the learner.
        """
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
        """Return the pool after the matches of a step.

        Args:
            scores: score of every match by opponent slot: 1 for a win of the learner, 0.5 for a draw, 0 for a loss.
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
        """Return the pool without versions after a given step, for a rollback of the run."""
        return replace(self, members=tuple(member for member in self.members if member.step <= step))

    def drawn(self, uniform: float, choose: Literal["uniform", "latest", "prioritised"], power: float) -> Member:
        """Return a task's opponent.

        Args:
            uniform: random number in [0, 1).
            choose: rule of the draw.
            power: exponent of the priority.
        """
        if choose == "latest":
            return self.members[-1]
        bounds = np.cumsum(self.chances(choose, power))
        return self.members[min(int(np.searchsorted(bounds, uniform, side="right")), len(self.members) - 1)]

    def chances(self, choose: str, power: float) -> Floats:
        """Return the draw probability of each member, shape [members].

        The prior keeps every win rate below 1, so every member has a positive probability.
        """
        weights = np.ones(len(self.members))
        if choose == "prioritised":
            left = np.array([1.0 - member.win_rate for member in self.members])
            weights = (left / left.max()) ** power  # the largest weight is 1 for every power
        return np.asarray(weights / weights.sum(), np.float64)


def superfluous(steps: Sequence[int]) -> int:
    """Return the index of the most redundant version.

    The candidates exclude the first and the newest version. The choice has the smallest gap between its neighbors, so
    the remaining versions stay spread over the run.

    >>> superfluous([0, 10, 15, 20]), superfluous([0, 5])
    (2, 1)
    """
    inner = range(1, len(steps) - 1)
    return min(inner, key=lambda place: steps[place + 1] - steps[place - 1], default=len(steps) - 1)
