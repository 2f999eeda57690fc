"""Compact progress display: one-line curves and the remaining time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▁▂▃▄▅▆▇█"
ETA_WINDOW = 20  # steps for the estimate of a step's duration
MIN_ETA_STEPS = 3  # steps before the estimate is reliable


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a curve with at most ``width`` characters.

    Each character is the mean of a range of values, and a space marks a range without finite values.

    >>> sparkline([0.0, 1.0, 0.5, math.nan, 1.0], 10)
    '▁█▅ █'
    """
    columns = min(width, len(values))
    edges = [number * len(values) // columns for number in range(columns + 1)] if columns > 0 else []
    means = [_mean(values[first:last]) for first, last in pairwise(edges)]
    finite = [value for value in means if not math.isnan(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_block(value, low, high) for value in means)


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _block(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return " "
    return BLOCKS[round((value / 2 - low / 2) / (high / 2 - low / 2) * 7) if high > low else 3]  # halves: no overflow


class TimeEstimate:
    """Estimate for the remaining time, from the mean over the last ``ETA_WINDOW`` steps, pauses included."""

    def __init__(self) -> None:
        self._end_times: deque[float] = deque(maxlen=ETA_WINDOW + 1)

    def update(self, timestamp: float) -> None:
        """Record the start, or the end of a step.

        Args:
            timestamp: seconds on any monotonic clock.
        """
        self._end_times.append(timestamp)

    def seconds(self, steps_left: int, timestamp: float) -> float:
        """Return the estimated seconds until ``steps_left`` more steps end; NaN before the first step ends."""
        steps = len(self._end_times) - 1
        if steps < 1:
            return math.nan
        step_seconds = (self._end_times[-1] - self._end_times[0]) / steps
        return (
            max(0.0, steps_left * step_seconds - min(timestamp - self._end_times[-1], step_seconds))
            if steps_left
            else 0.0
        )

    def format(self, steps_left: int, timestamp: float) -> str:
        """Return the estimate as text.

        >>> eta = TimeEstimate()
        >>> eta.update(0.0); eta.format(9, 1.0)
        'first step'
        >>> eta.update(60.0); eta.format(9, 60.0)
        'perhaps 9:00 left'
        """
        seconds, steps = self.seconds(steps_left, timestamp), len(self._end_times) - 1
        if math.isnan(seconds):
            return "first step"
        return (
            f"{format_duration(seconds)} left" if steps >= MIN_ETA_STEPS else f"perhaps {format_duration(seconds)} left"
        )


def format_duration(seconds: float) -> str:
    """Return a duration in seconds as ``m:ss`` or ``h:mm:ss``.

    >>> format_duration(59.6), format_duration(3600), format_duration(200_000)
    ('1:00', '1:00:00', '55:33:20')
    """
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"
