"""What a worker process takes of what the whole run has a number of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from marft.agents.loop_threads import LoopThreadPool
from marft.config.endpoint import EndpointSettings
from marft.rollout.workers.client import Client


class LeasingThreads(LoopThreadPool):
    """Threads of a worker process. What is counted over all episodes is counted over those of all workers."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    def slots(self, name: str, count: int) -> AbstractAsyncContextManager[object]:
        """What lets ``count`` calls of one kind be under way at a time, over all episodes of the run."""
        return self._client.slot(name, count)


class LeasedLimits:
    """An endpoint's limits where the run has other processes that ask the same one: those of the run. Asked for on
    any event loop.

    Args:
        loop: the client's.
        name: which no other endpoint of the run's has.
    """

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop, name: str, settings: EndpointSettings) -> None:
        self._client, self._loop, self._name, self._settings = client, loop, name, settings

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """One of the requests that may be under way at a time."""
        granted = Future[None]()
        holding = asyncio.run_coroutine_threadsafe(self._hold(granted), self._loop)
        try:
            await asyncio.wrap_future(granted)
            yield
        finally:
            holding.cancel()

    async def turn(self) -> None:
        """Wait until another request may be sent."""
        if per_minute := self._settings.requests_per_minute:
            waiting = asyncio.run_coroutine_threadsafe(self._client.turn(self._name, per_minute), self._loop)
            await asyncio.wrap_future(waiting)

    async def _hold(self, granted: Future[None]) -> None:
        async with self._client.slot(self._name, self._settings.concurrent_requests):
            if not granted.done():  # nobody waits any more, and this is about to be cancelled
                granted.set_result(None)
            await asyncio.Event().wait()
