"""Means and maxima in a training step, by agent, by policy and for the team."""

from __future__ import annotations

import math
from collections import defaultdict

from marft.trainer.rank_group import Ranks


class MetricAccumulator:
    """Accumulator for sums and counts by name, with means independent of batching.

    >>> meter = MetricAccumulator()
    >>> meter.add("entropy", 3.0, 2); meter.add("entropy", 1.0, 2); meter.update_max("difference", 0.5)
    >>> meter.means() == {"entropy": 1.0, "difference": 0.5}
    True
    """

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._max_values: dict[str, float] = {}

    def add(self, name: str, total: float, count: float = 1.0) -> None:
        """Add ``count`` observations with sum ``total``."""
        self._sums[name] += total
        self._counts[name] += count

    def update_max(self, name: str, value: float) -> None:
        """Update the maximum; NaN takes precedence and stays visible."""
        current = self._max_values.get(name, -math.inf)
        self._max_values[name] = value if math.isnan(value) else max(current, value)

    def merge(self, other: MetricAccumulator) -> None:
        """Merge another accumulator into this one."""
        for name, total in other._sums.items():
            self.add(name, total, other._counts[name])
        for name, value in other._max_values.items():
            self.update_max(name, value)

    def merge_ranks(self, ranks: Ranks) -> MetricAccumulator:
        """Merge the accumulators from every rank.

        A value that every rank adds identically keeps its mean.
        """
        merged = MetricAccumulator()
        for rank_metrics in ranks.gather(self):
            merged.merge(rank_metrics)
        return merged

    def total(self, name: str) -> float:
        """Return a metric's sum."""
        return self._sums[name]

    def means(self) -> dict[str, float]:
        """Return the mean or maximum of each metric; metrics with count 0 are omitted."""
        means = {name: self._sums[name] / self._counts[name] for name in self._sums if self._counts[name]}
        return {**means, **self._max_values}
