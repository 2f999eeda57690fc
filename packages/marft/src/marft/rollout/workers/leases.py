"""Slots and rate limits shared by a run's workers."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from marft.agents.loop_threads import LoopThreadPool
from marft.inference.endpoints.rate_limit import RateLimit


class Leases:
    """Named slots and rate limits of the whole run."""

    def __init__(self) -> None:
        self._slots = LoopThreadPool().slots
        self._turns: dict[str, RateLimit] = {}

    def slot(self, name: str, count: int) -> AbstractAsyncContextManager[object]:
        """Return a context manager that holds a slot, out of ``count`` slots."""
        return self._slots(name, count)

    async def turn(self, name: str, per_minute: float) -> None:
        """Wait for a turn within ``per_minute`` turns per minute."""
        if name not in self._turns:
            self._turns[name] = RateLimit(per_minute)
        await self._turns[name].wait()
