"""Admission queue: limits for concurrent and waiting requests."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from marft_serve.gateway.errors import RequestError


class BusyError(RequestError):
    """Error for a full queue.

    Args:
        retry_seconds: seconds to wait before a retry.
    """

    def __init__(self, retry_seconds: int) -> None:
        super().__init__(429, "rate_limit_exceeded", f"all places are taken; try again in {retry_seconds} s")
        self.retry_seconds = retry_seconds


class AdmissionQueue:
    """First-in, first-out queue with ``max_running`` concurrent requests and up to ``max_waiting`` waiting requests.

    All methods run on one event loop.

    Args:
        max_running: maximum number of concurrent requests.
        max_waiting: maximum number of waiting requests.
        on_change: callback with the number of running and waiting requests, after each change.
    """

    def __init__(self, max_running: int, max_waiting: int, on_change: Callable[[int], None] = lambda _: None) -> None:
        self.max_running, self.max_waiting, self._on_change = max_running, max_waiting, on_change
        self.running = self.waiting = 0
        self.semaphore = asyncio.Semaphore(max_running)
        self.mean_seconds = 1.0  # moving average of a request's duration

    def enter(self) -> QueueSlot:
        """Enter the queue; always release the returned slot.

        Raises:
            BusyError: the queue is full.
        """
        if self.running + self.waiting >= self.max_running + self.max_waiting:
            raise BusyError(max(1, math.ceil(self.mean_seconds * (self.waiting + 1) / self.max_running)))
        self.waiting += 1
        self.notify()
        return QueueSlot(self)

    def notify(self) -> None:
        """Report the number of running and waiting requests."""
        self._on_change(self.running + self.waiting)


class QueueSlot:
    """Slot for a request, first waiting, then running."""

    def __init__(self, queue: AdmissionQueue) -> None:
        self._queue, self._start_time = queue, 0.0

    async def acquire(self) -> None:
        """Wait for the request's turn."""
        await self._queue.semaphore.acquire()
        self._queue.waiting -= 1
        self._queue.running += 1
        self._start_time = asyncio.get_running_loop().time()

    def release(self) -> None:
        """Release the slot, waiting or running. Call it once."""
        queue = self._queue
        if not self._start_time:
            queue.waiting -= 1
        else:
            queue.running -= 1
            queue.mean_seconds = 0.8 * queue.mean_seconds + 0.2 * (asyncio.get_running_loop().time() - self._start_time)
            queue.semaphore.release()
        queue.notify()
