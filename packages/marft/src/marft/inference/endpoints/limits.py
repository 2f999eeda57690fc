"""How many requests an endpoint may be sent: at a time, and in a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from marft.config.endpoint import EndpointSettings
from marft.inference.endpoints.rate_limit import RateLimit


class Limits(Protocol):
    """Waited for on the endpoint's own thread."""

    def slot(self) -> AbstractAsyncContextManager[object]:
        """One of the requests that may be under way at a time."""
        ...

    async def turn(self) -> None:
        """Wait until another request may be sent."""
        ...


MakeLimits = Callable[[str, EndpointSettings], Limits]  # from a name that no other endpoint has


class OwnLimits:
    """The limits of an endpoint that this process alone asks."""

    def __init__(self, settings: EndpointSettings) -> None:
        self._gate = asyncio.Semaphore(settings.concurrent_requests)
        self._rate_limit = RateLimit(settings.requests_per_minute)

    def slot(self) -> AbstractAsyncContextManager[object]:
        """One of the requests that may be under way at a time."""
        return self._gate

    async def turn(self) -> None:
        """Wait until another request may be sent."""
        await self._rate_limit.turn()
