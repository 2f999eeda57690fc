"""Means and maxima in a training step, by agent, by policy and for the team."""

from __future__ import annotations

import math
from collections import defaultdict

from marft.trainer.rank_group import Ranks


class Meter:
    """Accumulator for sums and counts by name, with means independent of batching.

    >>> meter = Meter()
    >>> meter.add("entropy", 3.0, 2); meter.add("entropy", 1.0, 2); meter.peak("difference", 0.5)
    >>> meter.means() == {"entropy": 1.0, "difference": 0.5}
    True
    """

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._peaks: dict[str, float] = {}

    def add(self, name: str, total: float, count: float = 1.0) -> None:
        """Add ``count`` observations with sum ``total``."""
        self._sums[name] += total
        self._counts[name] += count

    def peak(self, name: str, value: float) -> None:
        """Update the maximum; NaN takes precedence and stays visible."""
        known = self._peaks.get(name, -math.inf)
        self._peaks[name] = value if math.isnan(value) else max(known, value)

    def absorb(self, other: Meter) -> None:
        """Merge another accumulator into this one."""
        for name, total in other._sums.items():
            self.add(name, total, other._counts[name])
        for name, value in other._peaks.items():
            self.peak(name, value)

    def of_all(self, ranks: Ranks) -> Meter:
        """Merge the accumulators from every rank.

        A value that every rank adds identically keeps its mean.
        """
        together = Meter()
        for meter in ranks.gather(self):
            together.absorb(meter)
        return together

    def total(self, name: str) -> float:
        """Return a metric's sum."""
        return self._sums[name]

    def means(self) -> dict[str, float]:
        """Return the mean or maximum of each metric; metrics with count 0 are omitted."""
        means = {name: self._sums[name] / self._counts[name] for name in self._sums if self._counts[name]}
        return {**means, **self._peaks}
