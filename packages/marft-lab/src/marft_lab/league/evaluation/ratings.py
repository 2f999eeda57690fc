"""Ratings from matches: Bradley and Terry's model with draws (Davidson 1970), by maximum likelihood.

``P(i beats j) = πᵢ / (πᵢ + πⱼ + ν √(πᵢ πⱼ))``, ``P(draw) = ν √(πᵢ πⱼ) / (…)``: in θ = ln π and δ = ln ν a multinomial
logit, whose likelihood is concave. A wide normal prior keeps ratings finite where somebody has won all its matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from marft.trainer.interfaces import Floats
from marft_lab.league.elo import SCALE

SPREAD = 800.0 / SCALE  # of the prior, on both sides of the mean: ten wins of ten say more
QUANTILE = 1.959964  # of the normal distribution, for intervals of 95 %
STEPS = 200


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of the matches of two players, as the first of them sees it.

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
        return self.won + self.drawn + self.lost

    @property
    def score(self) -> float:
        return (self.won + self.drawn / 2) / self.matches


@dataclass(frozen=True, slots=True)
class Rating:
    """Elo, 0 for the mean of all players, and its interval of 95 %."""

    elo: float
    interval: tuple[float, float]


def ratings(players: int, tallies: Sequence[Tally]) -> list[Rating]:
    """The ratings under which what came about is most likely.

    Args:
        players: how many; they are named by their numbers in the tallies.

    Raises:
        ValueError: there are no matches.
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
        x = x + step * min(1.0, 2.0 / (float(np.abs(step).max()) + 1e-12))  # no further at once than it can be trusted
        if float(np.abs(step).max()) < 1e-10:
            break
    centre = np.eye(players) - 1.0 / players
    covariance = centre @ np.linalg.inv(hessian)[:players, :players] @ centre.T
    values = SCALE * (centre @ x[:players])
    widths = SCALE * QUANTILE * np.sqrt(covariance.diagonal().clip(0.0))
    return [Rating(float(v), (float(v - w), float(v + w))) for v, w in zip(values, widths, strict=True)]


def _outcomes(players: int, tallies: Sequence[Tally]) -> tuple[Floats, Floats]:
    """What each outcome of each pair adds to its log-odds, [P, 3, N], and how often it came about, [P, 3]. Where
    nothing was drawn anywhere nothing can be."""
    draws = any(tally.drawn for tally in tallies)
    features = np.zeros((len(tallies), 3 if draws else 2, players + draws))
    for row, tally in zip(features, tallies, strict=True):
        row[0, tally.first] = row[1, tally.second] = 1.0
        if draws:
            row[2, [tally.first, tally.second]], row[2, players] = 0.5, 1.0
    counts = [[tally.won, tally.lost, *([tally.drawn] if draws else [])] for tally in tallies]
    return features, np.array(counts, np.float64)


def _slope(x: Floats, features: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """The gradient of the log-posterior, [N], and what it falls by, minus its Hessian, [N, N]."""
    logits = features @ x
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances = odds / odds.sum(axis=1, keepdims=True)
    matches = counts.sum(axis=1)
    expected = np.einsum("po,pon->pn", chances, features)
    gradient = np.einsum("po,pon->n", counts, features) - matches @ expected - x / SPREAD**2
    second = np.einsum("p,po,pon,pom->nm", matches, chances, features, features)
    second -= np.einsum("p,pn,pm->nm", matches, expected, expected)
    return gradient, second + np.eye(len(x)) / SPREAD**2
