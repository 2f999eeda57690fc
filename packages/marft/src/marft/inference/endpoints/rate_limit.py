"""Rate limit in requests per minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


class RateLimit:
    """Rate limiter with at least ``60 / per_minute`` seconds between requests. Unused time does not accumulate.

    The spacing of waiting requests counts from their scheduled times, not from the actual wake-up times, so delays do
    not accumulate.

    Args:
        per_minute: maximum number of requests per minute; 0 disables the limit.
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
        """Wait for the next free request slot."""
        if not self._apart:
            return
        now = self._clock()
        mine = max(now, self._next)
        self._next = mine + self._apart
        if mine > now:
            await self._sleep(mine - now)
