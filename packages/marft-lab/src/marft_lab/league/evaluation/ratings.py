"""Maximum-likelihood ratings from matches: Bradley–Terry model with draws (Davidson 1970).

``P(i beats j) = πᵢ / (πᵢ + πⱼ + ν √(πᵢ πⱼ))``, ``P(draw) = ν √(πᵢ πⱼ) / (…)``. In θ = ln π and δ = ln ν the model is a
multinomial logit with a concave log-likelihood. A wide normal prior keeps the rating of an undefeated version finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marft.common.errors import UserError
from marft.config.interfaces.credit import Floats
from marft_lab.league.pool import ELO_SCALE

PRIOR_STD = 800.0 / ELO_SCALE  # standard deviation of the prior, in log-odds; ten wins of ten outweigh the prior
NORMAL_QUANTILE = 1.959964  # of the normal distribution, for 95 % intervals
MAX_ITERATIONS = 200


@dataclass(frozen=True, slots=True)
class MatchRecord:
    """Match results of two players, from the first player's view.

    >>> MatchRecord(0, 1, won=3, drawn=1, lost=0).score
    0.875
    """

    first: int
    second: int
    won: int = 0
    drawn: int = 0
    lost: int = 0

    @property
    def matches(self) -> int:
        """Number of matches."""
        return self.won + self.drawn + self.lost

    @property
    def score(self) -> float:
        """Score of the first player, with a draw as one half."""
        return (self.won + self.drawn / 2) / self.matches


@dataclass(frozen=True, slots=True)
class EloRating:
    """Elo rating relative to the mean of all players, with a 95 % interval."""

    elo: float
    interval: tuple[float, float]


def fit_ratings(players: int, records: Sequence[MatchRecord]) -> list[EloRating]:
    """Return the players' maximum a posteriori ratings, shape [players].

    Args:
        players: number of players; tallies refer to players by index.
        records: results of the pairs.

    Raises:
        UserError: no matches.
    """
    non_empty = [record for record in records if record.matches]
    if not non_empty:
        raise UserError("there are no matches to rate players by")
    features, counts = _outcome_features(players, non_empty)
    x = np.zeros(features.shape[2])
    hessian = np.eye(len(x))
    for _ in range(MAX_ITERATIONS):
        gradient, hessian = _gradient_and_hessian(x, features, counts)
        step = np.linalg.solve(hessian, gradient)
        # limit the step to the range of the quadratic model
        x = x + step * min(1.0, 2.0 / (float(np.abs(step).max()) + 1e-12))
        if float(np.abs(step).max()) < 1e-10:
            break
    centering = np.eye(players) - 1.0 / players
    covariance = centering @ np.linalg.inv(hessian)[:players, :players] @ centering.T
    values = ELO_SCALE * (centering @ x[:players])
    widths = ELO_SCALE * NORMAL_QUANTILE * np.sqrt(covariance.diagonal().clip(0.0))
    return [EloRating(float(v), (float(v - w), float(v + w))) for v, w in zip(values, widths, strict=True)]


def _outcome_features(players: int, records: Sequence[MatchRecord]) -> tuple[Floats, Floats]:
    """Return outcome features, shape [pairs, outcomes, parameters], and outcome counts, shape [pairs, outcomes].

    Features are coefficients of an outcome's log-odds.

    Outcomes are win, loss and draw. Without any draw, the draw outcome and its parameter are left out.
    """
    draws = any(record.drawn for record in records)
    features = np.zeros((len(records), 3 if draws else 2, players + draws))
    for row, record in zip(features, records, strict=True):
        row[0, record.first] = row[1, record.second] = 1.0
        if draws:
            row[2, [record.first, record.second]], row[2, players] = 0.5, 1.0
    counts = [[record.won, record.lost, *([record.drawn] if draws else [])] for record in records]
    return features, np.array(counts, np.float64)


def _gradient_and_hessian(x: Floats, features: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return the gradient of the log-posterior, shape [N], and its negative Hessian, shape [N, N]."""
    logits = features @ x
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    matches = counts.sum(axis=1)
    expected = np.einsum("po,pon->pn", probabilities, features)
    gradient = np.einsum("po,pon->n", counts, features) - matches @ expected - x / PRIOR_STD**2
    second = np.einsum("p,po,pon,pom->nm", matches, probabilities, features, features)
    second -= np.einsum("p,pn,pm->nm", matches, expected, expected)
    return gradient, second + np.eye(len(x)) / PRIOR_STD**2
