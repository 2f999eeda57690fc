"""A limit of requests a minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class RateLimit:
    """Hands out turns that are at least ``60 / per_minute`` seconds apart. Unused time is not saved up.

    Turns that wait are spaced from one another, not from when somebody wakes, so that they do not drift.

    Args:
        per_minute: 0 is no limit.
    """

    def __init__(
        self,
        per_minute: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._apart = 60.0 / per_minute if per_minute else 0.0
        self._clock, self._sleep = clock, sleep
        self._next = 0.0

    async def turn(self) -> None:
        """Wait for the next free turn."""
        if not self._apart:
            return
        now = self._clock()
        mine = max(now, self._next)
        self._next = mine + self._apart
        if mine > now:
            await self._sleep(mine - now)
