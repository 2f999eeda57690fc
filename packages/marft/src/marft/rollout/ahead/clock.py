"""Clock for the idle time between rollouts."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock


class Clock:
    """Thread-safe counter of active rollouts and idle seconds.

    >>> clock = Clock(now=iter([0.0, 1.0, 4.0, 9.0]).__next__)
    >>> clock.began(); clock.ended(); clock.idle()
    6.0

    Args:
        now: function that returns the current time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now, self._lock = now, Lock()
        self._playing, self._idle, self._since = 0, 0.0, now()

    def began(self) -> None:
        """Register one more active rollout."""
        with self._lock:
            if not self._playing:
                self._idle += self._now() - self._since
            self._playing += 1

    def ended(self) -> None:
        """Register a finished rollout."""
        with self._lock:
            self._playing -= 1
            if not self._playing:
                self._since = self._now()

    def idle(self) -> float:
        """Return the total seconds without an active rollout so far."""
        with self._lock:
            return self._idle + (0.0 if self._playing else self._now() - self._since)
