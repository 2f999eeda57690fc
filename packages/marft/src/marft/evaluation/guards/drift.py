"""How far a metric of agents is from its first window."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from marft.evaluation.guards.gains import SURE
from marft.evaluation.guards.history import History


class Drift(NamedTuple):
    """A metric's means over the first and the newest window; ``sure`` where they differ by more than chance."""

    owner: str
    first: float
    now: float
    sure: bool
    well: int  # the step before the newest window

    @property
    def rise(self) -> float:
        return self.now - self.first


def drifts(history: History, metric: str, window: int, prefix: str = "agents") -> Iterator[Drift]:
    """Of every agent that has the metric in the newest step, and in two windows at least.

    They differ for sure by more than ``SURE`` standard errors of two windows' means, each scatter/√window.
    """
    for owner in history.owners(prefix, metric):
        series = history.now(f"{prefix}/{owner}/{metric}", 2 * window)
        if series is not None:
            first, now = float(series.values[:window].mean()), float(series.values[-window:].mean())
            sure = abs(now - first) > SURE * series.scatter() * math.sqrt(2.0 / window)
            yield Drift(owner, first, now, sure, series.steps[-window] - 1)
