"""Medals by rank on the leaderboard, as in MLE-bench (Chan et al. 2024, section 2.2)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

Medal = Literal["gold", "silver", "bronze", ""]


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Scores of all teams, best first.

    Args:
        scores: scores of the teams.
        lower_is_better: True if the metric prefers lower scores.
    """

    scores: Sequence[float]
    lower_is_better: bool

    def medal_for(self, score: float) -> Medal:
        """Return the best medal for a score; a tie with the last medal place earns the medal, and "" means none.

        >>> board = Leaderboard([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0], False)
        >>> [board.medal_for(score) for score in (0.95, 0.85, 0.8, 0.6, 0.5)]
        ['gold', 'silver', 'silver', 'bronze', '']
        """
        names: Sequence[Medal] = ("gold", "silver", "bronze")
        for name, place in zip(names, medal_places(len(self.scores)), strict=True):
            if self._reaches_bound(score, self.scores[place - 1]):
                return name
        return ""

    def is_above_median(self, score: float) -> bool:
        """Return True if the score beats the median team."""
        middle = median(self.scores)
        return score < middle if self.lower_is_better else score > middle

    def share_beaten(self, score: float) -> float:
        """Return the fraction of teams that the score beats; a tie counts one half."""
        ordered = sorted(-team_score if self.lower_is_better else team_score for team_score in self.scores)
        own_score = -score if self.lower_is_better else score
        return (bisect_left(ordered, own_score) + bisect_right(ordered, own_score)) / 2 / len(ordered)

    def _reaches_bound(self, score: float, bound: float) -> bool:
        return score <= bound if self.lower_is_better else score >= bound


def medal_places(teams: int) -> tuple[int, int, int]:
    """Return the last places for gold, silver and bronze: Kaggle's rules, rounded down as in MLE-bench.

    >>> medal_places(50), medal_places(120), medal_places(600), medal_places(2000)
    ((5, 10, 20), (10, 24, 48), (11, 50, 100), (14, 100, 200))
    """
    assert teams > 0
    if teams < 100:
        places = (teams // 10, teams // 5, teams * 2 // 5)
    elif teams < 250:
        places = (10, teams // 5, teams * 2 // 5)
    elif teams < 1000:
        places = (10 + teams // 500, 50, 100)
    else:
        places = (10 + teams // 500, teams // 20, teams // 10)
    gold, silver, bronze = (max(1, place) for place in places)
    return gold, silver, bronze
