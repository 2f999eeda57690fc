"""Detection of quiescence: no coroutine can advance without an engine answer. In-order admission waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

QUIET_PASSES = 16  # consecutive event-loop passes without activity that count as quiescence


class Stillness:
    """Quiescence barrier for the coroutines on an event loop.

    A coroutine calls :meth:`stir` when it makes a request or returns from an external wait.
    """

    def __init__(self) -> None:
        self._outside = 0
        self._all_back = asyncio.Event()
        self._stirred = 0

    def stir(self) -> None:
        """Record activity: a coroutine can possibly advance."""
        self._stirred += 1

    @contextmanager
    def external_wait(self) -> Iterator[None]:
        """Mark an external wait. The loop is never quiescent during the wait.

        The waiting coroutine will continue afterwards.
        """
        self._outside += 1
        try:
            yield
        finally:
            self._outside -= 1
            self._stirred += 1
            if self._outside == 0:
                self._all_back.set()

    async def reached(self) -> None:
        """Wait until every coroutine waits for an engine answer."""
        passes = 0
        while passes < QUIET_PASSES:
            if self._outside:
                self._all_back.clear()
                await self._all_back.wait()
            before = self._stirred
            await asyncio.sleep(0)
            passes = passes + 1 if self._stirred == before and self._outside == 0 else 0
