"""Token budget of an episode; actions in progress count with their maximum length."""

from __future__ import annotations

import asyncio

from marft_serve.gateway.errors import limit_exceeded_error


class Budget:
    """Sampling budget for an episode, in tokens.

    Requests reserve tokens before sampling and release the unused rest, so concurrent requests cannot spend the
    same tokens. All methods run on one event loop.

    Args:
        limit: maximum number of sampled tokens; 0 means no limit.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._spent = self._reserved = 0
        self._lock = asyncio.Lock()  # requests reserve in the order of arrival
        self._released = asyncio.Event()

    @property
    def remaining(self) -> int:
        """Tokens neither reserved nor spent."""
        return self.limit - self._spent - self._reserved

    async def reserve(self, actions: int, max_tokens: int) -> int:
        """Reserve tokens for ``actions`` actions; return the maximum for each action.

        The maximum is ``max_tokens``, or an equal share of the remaining tokens. If tokens reserved by other requests
        leave too few, wait for their release.

        Args:
            actions: number of actions of the request.
            max_tokens: requested maximum length of an action, in tokens.

        Raises:
            RequestError: less than one token per action remains.
        """
        if not self.limit:
            return max_tokens
        async with self._lock:
            while self._reserved and self.remaining < actions * max_tokens:
                self._released.clear()
                await self._released.wait()
            share = min(max_tokens, self.remaining // actions)
            if share < 1:
                raise limit_exceeded_error("tokens", self.limit)
            self._reserved += actions * share
            return share

    def release(self, reserved: int, sampled: int) -> None:
        """Release a reservation and count sampled tokens against the budget.

        Args:
            reserved: number of reserved tokens.
            sampled: number of sampled tokens.
        """
        self._spent += sampled
        self._reserved -= reserved if self.limit else 0
        self._released.set()
