"""Pool of past versions: membership, Elo ratings and choice of opponents, as pure functions.

Opponents are drawn uniformly as in fictitious self-play (Brown 1951; Heinrich et al. 2015), or with priority for
opponents with a low win rate of the learner. The priority is AlphaStar's
``f_hard(x) = (1 − x)^p`` (Vinyals et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from marft.config.interfaces.credit import Floats

ELO_SCALE = 400.0 / math.log(10.0)  # Elo points per unit of log-odds
K_FACTOR = 64.0  # change of the learner's rating per step, in Elo points per unit of mean score above expectation
DECAY = 0.9  # decay of earlier match counts per step, because the learner changes
PRIOR_WEIGHT = 1.0  # weight of the win-rate prior, in drawn matches


def expected_score(rating: float, opponent_rating: float) -> float:
    """Return the expected score for two Elo ratings.

    >>> round(expected_score(400.0, 0.0), 4)
    0.9091
    """
    return 1.0 / (1.0 + math.exp((opponent_rating - rating) / ELO_SCALE))


@dataclass(frozen=True, slots=True)
class PoolMember:
    """Version in a pool.

    >>> PoolMember("rival@1", step=10, won=3.0, played=4.0).win_rate
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
        return (self.won + PRIOR_WEIGHT / 2) / (self.played + PRIOR_WEIGHT)


@dataclass(frozen=True, slots=True)
class OpponentPool:
    """Pool of versions, oldest first, with the learner's rating."""

    members: tuple[PoolMember, ...]
    rating: float = 0.0

    @property
    def hardest_opponent(self) -> PoolMember:
        """Version with the lowest win rate of the learner."""
        return min(self.members, key=lambda member: member.win_rate)

    def add_member(self, slots: Sequence[str], step: int) -> OpponentPool:
        """Return the pool with the current learner; a full pool drops its most redundant version.

        Args:
            slots: names of the policies for pool versions.
            step: training step of the learner.
        """
        members = self.members
        if len(members) == len(slots):
            if len(slots) == 1:
                return self
            removed = find_redundant([member.step for member in members])
            members = (*members[:removed], *members[removed + 1 :])
        used_slots = {member.slot for member in members}
        slot = next(slot for slot in slots if slot not in used_slots)
        return replace(self, members=(*members, PoolMember(slot, step, self.rating)))

    def with_results(self, scores: Mapping[str, Sequence[float]]) -> OpponentPool:
        """Return the pool after the matches of a step.

        Args:
            scores: score of every match by opponent slot: 1 for a win of the learner, 0.5 for a draw, 0 for a loss.
        """
        members, gained = list[PoolMember](), list[float]()
        for member in self.members:
            results = scores.get(member.slot, ())
            won, played = DECAY * member.won + sum(results), DECAY * member.played + len(results)
            members.append(replace(member, won=won, played=played))
            gained += [score - expected_score(self.rating, member.rating) for score in results]
        moved = K_FACTOR * sum(gained) / len(gained) if gained else 0.0
        return OpponentPool(tuple(members), self.rating + moved)

    def truncate(self, step: int) -> OpponentPool:
        """Return the pool without versions after a given step, for a rollback of the run."""
        return replace(self, members=tuple(member for member in self.members if member.step <= step))

    def sample_opponent(
        self, uniform: float, choose: Literal["uniform", "latest", "prioritized"], power: float
    ) -> PoolMember:
        """Return a task's opponent.

        Args:
            uniform: random number in [0, 1).
            choose: rule of the draw.
            power: exponent of the priority.
        """
        if choose == "latest":
            return self.members[-1]
        bounds = np.cumsum(self.sampling_probabilities(choose, power))
        return self.members[min(int(np.searchsorted(bounds, uniform, side="right")), len(self.members) - 1)]

    def sampling_probabilities(self, choose: str, power: float) -> Floats:
        """Return the draw probability of each member, shape [members].

        The prior keeps every win rate below 1, so every member has a positive probability.
        """
        weights = np.ones(len(self.members))
        if choose == "prioritized":
            loss_rates = np.array([1.0 - member.win_rate for member in self.members])
            weights = (loss_rates / loss_rates.max()) ** power  # the largest weight is 1 for every power
        return np.asarray(weights / weights.sum(), np.float64)


def find_redundant(steps: Sequence[int]) -> int:
    """Return the index of the most redundant version.

    The candidates exclude the first and the newest version. The choice has the smallest gap between its neighbors, so
    the remaining versions stay spread over the run.

    >>> find_redundant([0, 10, 15, 20]), find_redundant([0, 5])
    (2, 1)
    """
    inner = range(1, len(steps) - 1)
    return min(inner, key=lambda index: steps[index + 1] - steps[index - 1], default=len(steps) - 1)
