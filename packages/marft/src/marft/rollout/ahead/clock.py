"""Whether anything is played, and for how long nothing was."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock


class Clock:
    """Counts what is being played, from several threads.

    >>> clock = Clock(now=iter([0.0, 1.0, 4.0, 9.0]).__next__)
    >>> clock.began(); clock.ended(); clock.idle()
    6.0

    Args:
        now: seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now, self._lock = now, Lock()
        self._playing, self._idle, self._since = 0, 0.0, now()

    def began(self) -> None:
        """Something more is played."""
        with self._lock:
            if not self._playing:
                self._idle += self._now() - self._since
            self._playing += 1

    def ended(self) -> None:
        """Something less is."""
        with self._lock:
            self._playing -= 1
            if not self._playing:
                self._since = self._now()

    def idle(self) -> float:
        """Seconds up to now in which nothing was."""
        with self._lock:
            return self._idle + (0.0 if self._playing else self._now() - self._since)
