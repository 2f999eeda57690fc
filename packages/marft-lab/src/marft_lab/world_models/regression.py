"""Regression-based world model, which generalizes: ridge regressions on hashed words predict observed outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from zlib import crc32

import numpy as np
from pydantic import Field

from marft.common.seeds import generator
from marft.config.parts import WorldModelPart
from marft.config.settings import Few, Positive
from marft_lab.world_models.interface import Floats, Lived, Outcome, Prediction, Situation, disagreement, tallied

Places = Annotated[int, Field(ge=16, le=4096)]


class Regression(WorldModelPart):
    """World model for environments with many distinct texts.

    The prediction is the observed outcome nearest to the output of a ridge regression on hashed words. The uncertainty
    is the disagreement of an ensemble on this outcome.

    Members are fitted to bootstraps with Poisson(1) weights. Their features are the words of a history with their
    positions, and the words of the last observation combined with the action. The target vector of an outcome has the
    hashed words of the next observation, the rewards, and a flag for the end. The ensemble cannot detect errors shared
    by all members; the check on real episodes detects them.
    """

    members: Few = 8  # number of ensemble members
    dimensions: Places = 256  # number of hash buckets for words
    ridge: Positive = 1.0  # L2 penalty on the regression weights

    def fit(self, lived: Sequence[Lived], seed: int) -> Regressed:
        """Fit the members to transitions."""
        counts = tallied(lived)
        outcomes = list(dict.fromkeys(outcome for _, _, outcome in counts))
        if not outcomes:
            return Regressed(self.dimensions, (), np.zeros((0, 0)), np.zeros((0, self.dimensions, 0)))
        table = self._targets(outcomes)  # [O, K]
        place = {outcome: number for number, outcome in enumerate(outcomes)}
        x = np.array([features(situation, action, self.dimensions) for situation, action, _ in counts])  # [N, D]
        y = table[[place[outcome] for _, _, outcome in counts]]  # [N, K]
        often = np.array(list(counts.values()), np.float64)
        drawn = generator(seed, "regression").poisson(often, (self.members, len(often)))  # [M, N]
        return Regressed(
            self.dimensions, tuple(outcomes), table, np.array([ridge(x, y, row, self.ridge) for row in drawn])
        )

    def _targets(self, outcomes: Sequence[Outcome]) -> Floats:
        """Return the target vectors of outcomes, shape [outcomes, targets], with rewards scaled to [0, 1]."""
        seen = np.array([hashed(words(one.following), self.dimensions // 2) for one in outcomes])
        roles = sorted({role for one in outcomes for role, _ in one.agent_rewards})
        own = [dict(one.agent_rewards) for one in outcomes]
        rewards = np.array(
            [[one.reward, *(paid.get(role, 0.0) for role in roles)] for one, paid in zip(outcomes, own, strict=True)]
        )
        low, width = rewards.min(0), np.ptp(rewards, axis=0)
        ends = np.array([[float(not one.following)] for one in outcomes])
        return np.concatenate([seen, (rewards - low) / np.where(width > 0, width, 1.0), ends], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class Regressed:
    """Fitted regression model: members' weights, shape [M, D, K], and observed outcomes with targets, shape [O, K]."""

    dimensions: int
    outcomes: tuple[Outcome, ...]
    table: Floats
    weights: Floats

    def predict(self, situation: Situation, action: str) -> Prediction:
        """Return the outcomes named by the members, with the fraction of votes as probability."""
        if not self.outcomes:
            return Prediction()
        expected = features(situation, action, self.dimensions) @ self.weights  # [M, K]
        distances = np.square(expected[:, None] - self.table).sum(-1)  # [M, O]
        votes = np.eye(len(self.outcomes))[np.round(distances, 9).argmin(1)]
        named = np.flatnonzero(votes.any(0))
        return Prediction(
            tuple(self.outcomes[number] for number in named), votes.mean(0)[named], disagreement(votes[:, named])
        )


def ridge(x: Floats, y: Floats, weights: np.ndarray, penalty: float) -> Floats:
    """Return the weighted ridge solution ``argmin_W Σ_n w_n ‖x_n W − y_n‖² + penalty ‖W‖²``, shape [D, K].

    Args:
        x: features, shape [N, D].
        y: targets, shape [N, K].
        weights: weights of the rows, shape [N].
        penalty: L2 penalty.
    """
    weighed = x * weights[:, None]
    found: Floats = np.linalg.solve(x.T @ weighed + penalty * np.eye(x.shape[1]), weighed.T @ y)
    return found


def features(situation: Situation, action: str, dimensions: int) -> Floats:
    """Return the features of a history and an action, shape [dimensions].

    The features are the words of each observation with age and position, earlier actions, and words of the last
    observation combined with the action.
    """
    named = [f"{age} {word}" for age, text in enumerate(reversed(situation.observed)) for word in words(text)]
    named += [f"done {age} {text}" for age, text in enumerate(reversed(situation.done))]
    together = [f"{word} then {action}" for word in words(situation.observed[-1])]
    return hashed([*named, *together, f"then {action}"], dimensions)


def words(text: str) -> list[str]:
    """Return the words of a text, each with its position.

    >>> words("SF FG")
    ['0 SF', '1 FG']
    """
    return [f"{place} {word}" for place, word in enumerate(text.split())]


def hashed(named: Sequence[str], dimensions: int) -> Floats:
    """Return hashed features as a vector of length 1 or 0, shape [dimensions].

    Each feature adds 1 or −1, by one bit of its hash, at an index from the remaining bits (Weinberger et al. 2009).
    """
    found = np.zeros(dimensions)
    for name in named:
        code = crc32(name.encode())
        found[(code >> 1) % dimensions] += 1.0 if code & 1 else -1.0
    length = float(np.linalg.norm(found))
    return found / length if length else found
