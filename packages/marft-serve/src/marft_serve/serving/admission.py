"""How many requests are answered at a time, and how many wait for that."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from marft_serve.gateway.refusals import RequestError


class BusyError(RequestError):
    """As many requests wait as may.

    Args:
        seconds: after which it may be tried again.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__(429, "rate_limit_exceeded", f"all places are taken; try again in {seconds} s")
        self.seconds = seconds


class Gate:
    """Lets ``places`` requests through at a time; up to ``queue`` more wait, in the order in which they came.

    It lives on one event loop.

    Args:
        tell: told how many requests there are, those that wait included, whenever that changes.
    """

    def __init__(self, places: int, queue: int, tell: Callable[[int], None] = lambda _: None) -> None:
        self.places, self.queue, self._tell = places, queue, tell
        self.running = self.waiting = 0
        self.free = asyncio.Semaphore(places)
        self.seconds = 1.0  # that a request has taken lately

    def enter(self) -> Place:
        """A place in the queue, which is to be left in any case.

        Raises:
            BusyError: there is none.
        """
        if self.running + self.waiting >= self.places + self.queue:
            raise BusyError(max(1, math.ceil(self.seconds * (self.waiting + 1) / self.places)))
        self.waiting += 1
        self.changed()
        return Place(self)

    def changed(self) -> None:
        """Tell how many requests there are."""
        self._tell(self.running + self.waiting)


class Place:
    """A request's place: first in the queue, then at work."""

    def __init__(self, gate: Gate) -> None:
        self._gate, self._began = gate, 0.0

    async def work(self) -> None:
        """Wait until the request's turn has come."""
        await self._gate.free.acquire()
        self._gate.waiting -= 1
        self._gate.running += 1
        self._began = asyncio.get_running_loop().time()

    def leave(self) -> None:
        """Make room for the next one, wherever this was. It is called once."""
        gate = self._gate
        if not self._began:
            gate.waiting -= 1
        else:
            gate.running -= 1
            gate.seconds = 0.8 * gate.seconds + 0.2 * (asyncio.get_running_loop().time() - self._began)
            gate.free.release()
        gate.changed()
