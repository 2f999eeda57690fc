"""Compact progress display: one-line curves and the remaining time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
RECENT = 20  # steps for the estimate of a step's duration
FEW = 3  # steps before the estimate is reliable


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a curve with at most ``width`` characters.

    Each character is the mean of a range of values, and a space marks a range without finite values.

    >>> sparkline([0.0, 1.0, 0.5, math.nan, 1.0], 10)
    '▁█▅ █'
    """
    columns = min(width, len(values))
    edges = [number * len(values) // columns for number in range(columns + 1)] if columns > 0 else []
    means = [_mean(values[first:last]) for first, last in pairwise(edges)]
    known = [value for value in means if not math.isnan(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return "".join(_block(value, low, high) for value in means)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _block(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return " "
    return BLOCKS[round((value / 2 - low / 2) / (high / 2 - low / 2) * 7) if high > low else 3]  # halves: no overflow


class Eta:
    """Estimate for the remaining time, from the mean over the last ``RECENT`` steps, pauses included."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=RECENT + 1)

    def tick(self, now: float) -> None:
        """Record the start, or the end of a step.

        Args:
            now: seconds on any monotonic clock.
        """
        self._ends.append(now)

    def seconds(self, left: int, now: float) -> float:
        """Return the estimated seconds until ``left`` more steps end; NaN before the first step ends."""
        steps = len(self._ends) - 1
        if steps < 1:
            return math.nan
        each = (self._ends[-1] - self._ends[0]) / steps
        return max(0.0, left * each - min(now - self._ends[-1], each)) if left else 0.0

    def words(self, left: int, now: float) -> str:
        """Return the estimate as text.

        >>> eta = Eta()
        >>> eta.tick(0.0); eta.words(9, 1.0)
        'first step'
        >>> eta.tick(60.0); eta.words(9, 60.0)
        'perhaps 9:00 left'
        """
        seconds, steps = self.seconds(left, now), len(self._ends) - 1
        if math.isnan(seconds):
            return "first step"
        return f"{clock(seconds)} left" if steps >= FEW else f"perhaps {clock(seconds)} left"


def clock(seconds: float) -> str:
    """Return a duration in seconds as ``m:ss`` or ``h:mm:ss``.

    >>> clock(59.6), clock(3600), clock(200_000)
    ('1:00', '1:00:00', '55:33:20')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
