"""Clock for the idle time between rollouts."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock


class IdleClock:
    """Thread-safe counter of active rollouts and idle seconds.

    >>> clock = IdleClock(timer=iter([0.0, 1.0, 4.0, 9.0]).__next__)
    >>> clock.start(); clock.stop(); clock.idle()
    6.0

    Args:
        timer: function that returns the current time in seconds.
    """

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self._timer, self._lock = timer, Lock()
        self._active, self._idle, self._since = 0, 0.0, timer()

    def start(self) -> None:
        """Register one more active rollout."""
        with self._lock:
            if not self._active:
                self._idle += self._timer() - self._since
            self._active += 1

    def stop(self) -> None:
        """Register a finished rollout."""
        with self._lock:
            self._active -= 1
            if not self._active:
                self._since = self._timer()

    def idle(self) -> float:
        """Return the total seconds without an active rollout so far."""
        with self._lock:
            return self._idle + (0.0 if self._active else self._timer() - self._since)
