"""What a run has a number of, or so many of a minute, and its workers take."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from marft.agents.loop_threads import LoopThreadPool
from marft.inference.endpoints.rate_limit import RateLimit


class Leases:
    """Slots and turns by name, those of the whole run."""

    def __init__(self) -> None:
        self._slots = LoopThreadPool().slots
        self._turns: dict[str, RateLimit] = {}

    def slot(self, name: str, count: int) -> AbstractAsyncContextManager[object]:
        """One of ``count``."""
        return self._slots(name, count)

    async def turn(self, name: str, per_minute: float) -> None:
        """Wait for the next of ``per_minute``."""
        if name not in self._turns:
            self._turns[name] = RateLimit(per_minute)
        await self._turns[name].turn()
