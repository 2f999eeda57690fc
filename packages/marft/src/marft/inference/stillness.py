"""When nobody can go on without an answer from outside: what in-order admission waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

QUIET_PASSES = 16  # event-loop passes in which nothing stirs that count as "nobody can advance"


class Stillness:
    """Watches the coroutines of one event loop: whoever asks for something, or is back from elsewhere, stirs."""

    def __init__(self) -> None:
        self._outside = 0
        self._all_back = asyncio.Event()
        self._stirred = 0

    def stir(self) -> None:
        """Something has happened, after which somebody may go on."""
        self._stirred += 1

    @contextmanager
    def external_wait(self) -> Iterator[None]:
        """While it is held, there is no stillness: somebody waits for something else, and will go on after it."""
        self._outside += 1
        try:
            yield
        finally:
            self._outside -= 1
            self._stirred += 1
            if self._outside == 0:
                self._all_back.set()

    async def reached(self) -> None:
        """Until every coroutine waits for an answer."""
        passes = 0
        while passes < QUIET_PASSES:
            if self._outside:
                self._all_back.clear()
                await self._all_back.wait()
            before = self._stirred
            await asyncio.sleep(0)
            passes = passes + 1 if self._stirred == before and self._outside == 0 else 0
