"""Drift of an agent metric from its first window."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from marft.evaluation.guards.gains import SURE
from marft.evaluation.guards.history import History


class Drift(NamedTuple):
    """Means of a metric over the first and the newest window.

    Args:
        sure: True if the difference exceeds chance.
        well: the step before the newest window.
    """

    owner: str
    first: float
    now: float
    sure: bool
    well: int  # the step before the newest window

    @property
    def rise(self) -> float:
        """Difference between the newest and the first mean."""
        return self.now - self.first


def drifts(history: History, metric: str, window: int, prefix: str = "agents") -> Iterator[Drift]:
    """Yield the drift for every agent with a current value and at least two windows of values.

    A drift is ``sure`` above ``SURE`` standard errors of the difference, scatter · √(2/window).
    """
    for owner in history.owners(prefix, metric):
        series = history.now(f"{prefix}/{owner}/{metric}", 2 * window)
        if series is not None:
            first, now = float(series.values[:window].mean()), float(series.values[-window:].mean())
            sure = abs(now - first) > SURE * series.scatter() * math.sqrt(2.0 / window)
            yield Drift(owner, first, now, sure, series.steps[-window] - 1)
