"""Elo: what a difference in rating means, and how a rating moves with what is played (Elo 1978)."""

from __future__ import annotations

import math

SCALE = 400.0 / math.log(10.0)  # points of Elo for a unit of log-odds
K = 64.0  # points that a step moves the learner's rating, for each unit of its mean score above what was expected


def expected_score(mine: float, theirs: float) -> float:
    """The score that a difference in rating foretells.

    >>> round(expected_score(400.0, 0.0), 4)
    0.9091
    """
    return 1.0 / (1.0 + math.exp((theirs - mine) / SCALE))
