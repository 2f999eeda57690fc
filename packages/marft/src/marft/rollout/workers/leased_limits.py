"""Shared slots and rate limits from the view of a worker process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from marft.agents.loop_threads import LoopThreadPool
from marft.config.endpoint import EndpointSettings
from marft.rollout.workers.client import SamplerClient


class LeasedThreadPool(LoopThreadPool):
    """Session threads in a worker process, with slots shared across the run's workers."""

    def __init__(self, client: SamplerClient) -> None:
        super().__init__()
        self._client = client

    def slots(self, name: str, count: int) -> AbstractAsyncContextManager[object]:
        """Return a context manager for a slot, out of ``count`` slots shared across the run's episodes."""
        return self._client.slot(name, count)


class LeasedLimits:
    """Endpoint limits, shared by the run's processes and usable on any event loop.

    Args:
        client: client of the worker process.
        loop: event loop of the client.
        name: name of the endpoint, unique within the run.
        settings: settings of the endpoint.
    """

    def __init__(
        self, client: SamplerClient, loop: asyncio.AbstractEventLoop, name: str, settings: EndpointSettings
    ) -> None:
        self._client, self._loop, self._name, self._settings = client, loop, name, settings

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot for one concurrent request."""
        acquired = Future[None]()
        hold_task = asyncio.run_coroutine_threadsafe(self._hold(acquired), self._loop)
        try:
            await asyncio.wrap_future(acquired)
            yield
        finally:
            hold_task.cancel()

    async def turn(self) -> None:
        """Wait for a turn within ``requests_per_minute``; return at once without such a limit."""
        if per_minute := self._settings.requests_per_minute:
            turn_task = asyncio.run_coroutine_threadsafe(self._client.turn(self._name, per_minute), self._loop)
            await asyncio.wrap_future(turn_task)

    async def _hold(self, acquired: Future[None]) -> None:
        async with self._client.slot(self._name, self._settings.max_concurrent_requests):
            if not acquired.done():  # the caller was cancelled, and this task will be too
                acquired.set_result(None)
            await asyncio.Event().wait()
