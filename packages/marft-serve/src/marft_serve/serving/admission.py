"""Admission queue: limits for concurrent and waiting requests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from marft_serve.gateway.refusals import RequestError


class BusyError(RequestError):
    """Error for a full queue.

    Args:
        seconds: seconds to wait before a retry.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__(429, "rate_limit_exceeded", f"all places are taken; try again in {seconds} s")
        self.seconds = seconds


class Gate:
    """First-in, first-out queue with ``places`` concurrent requests and up to ``queue`` waiting requests.

    All methods run on one event loop.

    Args:
        places: maximum number of concurrent requests.
        queue: maximum number of waiting requests.
        tell: callback with the number of running and waiting requests, after each change.
    """

    def __init__(self, places: int, queue: int, tell: Callable[[int], None] = lambda _: None) -> None:
        self.places, self.queue, self._tell = places, queue, tell
        self.running = self.waiting = 0
        self.free = asyncio.Semaphore(places)
        self.seconds = 1.0  # moving average of a request's duration

    def enter(self) -> Place:
        """Enter the queue; always release the returned slot.

        Raises:
            BusyError: the queue is full.
        """
        if self.running + self.waiting >= self.places + self.queue:
            raise BusyError(max(1, math.ceil(self.seconds * (self.waiting + 1) / self.places)))
        self.waiting += 1
        self.changed()
        return Place(self)

    def changed(self) -> None:
        """Report the number of running and waiting requests."""
        self._tell(self.running + self.waiting)


class Place:
    """Slot for a request, first waiting, then running."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self._began = gate, 0.0

    async def work(self) -> None:
        """Wait for the request's turn."""
        await self._gate.free.acquire()
        self._gate.waiting -= 1
        self._gate.running += 1
        self._began = asyncio.get_running_loop().time()

    def leave(self) -> None:
        """Release the slot, waiting or running. Call it once."""
        gate = self._gate
        if not self._began:
            gate.waiting -= 1
        else:
            gate.running -= 1
            gate.seconds = 0.8 * gate.seconds + 0.2 * (asyncio.get_running_loop().time() - self._began)
            gate.free.release()
        gate.changed()
