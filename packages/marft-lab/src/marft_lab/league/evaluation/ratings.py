"""Maximum-likelihood ratings from matches: Bradley–Terry model with draws (Davidson 1970).

``P(i beats j) = πᵢ / (πᵢ + πⱼ + ν √(πᵢ πⱼ))``, ``P(draw) = ν √(πᵢ πⱼ) / (…)``. In θ = ln π and δ = ln ν the model is a
multinomial logit with a concave log-likelihood. A wide normal prior keeps the rating of an undefeated version finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marft.trainer.interfaces import Floats
from marft_lab.league.elo import SCALE

SPREAD = 800.0 / SCALE  # standard deviation of the prior, in log-odds; ten wins of ten outweigh the prior
QUANTILE = 1.959964  # of the normal distribution, for 95 % intervals
STEPS = 200


@dataclass(frozen=True, slots=True)
class Tally:
    """Match results of two players, from the first player's view.

    >>> Tally(0, 1, won=3, drawn=1, lost=0).score
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
class Rating:
    """Elo rating relative to the mean of all players, with a 95 % interval."""

    elo: float
    interval: tuple[float, float]


def ratings(players: int, tallies: Sequence[Tally]) -> list[Rating]:
    """Return the players' maximum a posteriori ratings, shape [players].

    Args:
        players: number of players; tallies refer to players by index.
        tallies: results of the pairs.

    Raises:
        ValueError: no matches.
    """
    played = [tally for tally in tallies if tally.matches]
    if not played:
        raise ValueError("there are no matches to rate players by")
    features, counts = _outcomes(players, played)
    x = np.zeros(features.shape[2])
    hessian = np.eye(len(x))
    for _ in range(STEPS):
        gradient, hessian = _slope(x, features, counts)
        step = np.linalg.solve(hessian, gradient)
        # limit the step to the range of the quadratic model
        x = x + step * min(1.0, 2.0 / (float(np.abs(step).max()) + 1e-12))
        if float(np.abs(step).max()) < 1e-10:
            break
    centre = np.eye(players) - 1.0 / players
    covariance = centre @ np.linalg.inv(hessian)[:players, :players] @ centre.T
    values = SCALE * (centre @ x[:players])
    widths = SCALE * QUANTILE * np.sqrt(covariance.diagonal().clip(0.0))
    return [Rating(float(v), (float(v - w), float(v + w))) for v, w in zip(values, widths, strict=True)]


def _outcomes(players: int, tallies: Sequence[Tally]) -> tuple[Floats, Floats]:
    """Return outcome features, shape [pairs, outcomes, parameters], and outcome counts, shape [pairs, outcomes].

    Features are coefficients of an outcome's log-odds.

    Outcomes are win, loss and draw. Without any draw, the draw outcome and its parameter are left out.
    """
    draws = any(tally.drawn for tally in tallies)
    features = np.zeros((len(tallies), 3 if draws else 2, players + draws))
    for row, tally in zip(features, tallies, strict=True):
        row[0, tally.first] = row[1, tally.second] = 1.0
        if draws:
            row[2, [tally.first, tally.second]], row[2, players] = 0.5, 1.0
    counts = [[tally.won, tally.lost, *([tally.drawn] if draws else [])] for tally in tallies]
    return features, np.array(counts, np.float64)


def _slope(x: Floats, features: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return the gradient of the log-posterior, shape [N], and its negative Hessian, shape [N, N]."""
    logits = features @ x
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances = odds / odds.sum(axis=1, keepdims=True)
    matches = counts.sum(axis=1)
    expected = np.einsum("po,pon->pn", chances, features)
    gradient = np.einsum("po,pon->n", counts, features) - matches @ expected - x / SPREAD**2
    second = np.einsum("p,po,pon,pom->nm", matches, chances, features, features)
    second -= np.einsum("p,pn,pm->nm", matches, expected, expected)
    return gradient, second + np.eye(len(x)) / SPREAD**2
