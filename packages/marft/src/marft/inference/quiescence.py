"""Detection of quiescence: no coroutine can advance without an engine answer. In-order admission waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

QUIET_PASSES = 16  # consecutive event-loop passes without activity that count as quiescence


class QuiescenceBarrier:
    """Quiescence barrier for the coroutines on an event loop.

    A coroutine calls :meth:`notify_activity` when it makes a request or returns from an external wait.
    """

    def __init__(self) -> None:
        self._external_waits = 0
        self._waits_done = asyncio.Event()
        self._activity_count = 0

    def notify_activity(self) -> None:
        """Record activity: a coroutine can possibly advance."""
        self._activity_count += 1

    @contextmanager
    def external_wait(self) -> Iterator[None]:
        """Mark an external wait. The loop is never quiescent during the wait.

        The waiting coroutine will continue afterwards.
        """
        self._external_waits += 1
        try:
            yield
        finally:
            self._external_waits -= 1
            self._activity_count += 1
            if self._external_waits == 0:
                self._waits_done.set()

    async def wait(self) -> None:
        """Wait until every coroutine waits for an engine answer."""
        passes = 0
        while passes < QUIET_PASSES:
            if self._external_waits:
                self._waits_done.clear()
                await self._waits_done.wait()
            before = self._activity_count
            await asyncio.sleep(0)
            passes = passes + 1 if self._activity_count == before and self._external_waits == 0 else 0
