"""Request limits for an endpoint: concurrent requests and requests per minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from marft.config.endpoint import EndpointSettings


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
        get_time: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._interval = 60.0 / per_minute if per_minute else 0.0
        self._get_time, self._sleep = get_time, sleep
        self._next_time = 0.0

    async def wait(self) -> None:
        """Wait for the next free request slot."""
        if not self._interval:
            return
        current_time = self._get_time()
        scheduled_time = max(current_time, self._next_time)
        self._next_time = scheduled_time + self._interval
        if scheduled_time > current_time:
            await self._sleep(scheduled_time - current_time)


class LocalLimits:
    """Limits for an endpoint used only by this process."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._semaphore = asyncio.Semaphore(settings.max_concurrent_requests)
        self._rate_limit = RateLimit(settings.requests_per_minute)

    def slot(self) -> AbstractAsyncContextManager[object]:
        """Return a context manager that occupies a concurrent request slot."""
        return self._semaphore

    async def turn(self) -> None:
        """Wait until the rate limit permits another request."""
        await self._rate_limit.wait()
