"""Drift of an agent metric from its first window."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from marft.evaluation.guards.effect_size import MIN_STANDARD_ERRORS
from marft.evaluation.guards.history import History


class Drift(NamedTuple):
    """Means of a metric over the first and the newest window.

    Args:
        is_significant: True if the difference exceeds chance.
        last_good_step: the step before the newest window.
    """

    owner: str
    first: float
    last: float
    is_significant: bool
    last_good_step: int  # the step before the newest window

    @property
    def increase(self) -> float:
        """Difference between the newest and the first mean."""
        return self.last - self.first


def find_drifts(history: History, metric: str, window: int, prefix: str = "agents") -> Iterator[Drift]:
    """Yield the drift for every agent with a current value and at least two windows of values.

    A drift is ``is_significant`` above ``MIN_STANDARD_ERRORS`` standard errors of the difference, scatter ·
    √(2/window).
    """
    for owner in history.owners(prefix, metric):
        series = history.current_series(f"{prefix}/{owner}/{metric}", 2 * window)
        if series is not None:
            first, last = float(series.values[:window].mean()), float(series.values[-window:].mean())
            is_significant = abs(last - first) > MIN_STANDARD_ERRORS * series.estimate_noise() * math.sqrt(2.0 / window)
            yield Drift(owner, first, last, is_significant, series.steps[-window] - 1)
