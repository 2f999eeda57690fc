"""Elo ratings: expected scores and rating scale (Elo 1978)."""

from __future__ import annotations

import math

ELO_SCALE = 400.0 / math.log(10.0)  # Elo points per unit of log-odds
K_FACTOR = 64.0  # change of the learner's rating per step, in Elo points per unit of mean score above expectation


def expected_score(rating: float, opponent_rating: float) -> float:
    """Return the expected score for two Elo ratings.

    >>> round(expected_score(400.0, 0.0), 4)
    0.9091
    """
    return 1.0 / (1.0 + math.exp((opponent_rating - rating) / ELO_SCALE))
