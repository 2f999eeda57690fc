"""Request limits for an endpoint: concurrent requests and requests per minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from marft.config.endpoint import EndpointSettings
from marft.inference.endpoints.rate_limit import RateLimit


class RequestLimits(Protocol):
    """Request limits, for use on the endpoint's own thread."""

    def slot(self) -> AbstractAsyncContextManager[object]:
        """Return a context manager that occupies a concurrent request slot."""
        ...

    async def turn(self) -> None:
        """Wait until the rate limit permits another request."""
        ...


LimitsFactory = Callable[[str, EndpointSettings], RequestLimits]  # the argument is the endpoint's unique name


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
