"""Token budget of an episode; actions in progress count with their maximum length."""

from __future__ import annotations

import asyncio

from marft_serve.gateway.refusals import spent


class Budget:
    """Sampling budget for an episode, in tokens.

    Requests reserve tokens before sampling and release the unused rest, so concurrent requests cannot spend the
    same tokens. All methods run on one event loop.

    Args:
        limit: maximum number of sampled tokens; 0 means no limit.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._spent = self._taken = 0
        self._turn = asyncio.Lock()  # requests reserve in the order of arrival
        self._given = asyncio.Event()

    @property
    def left(self) -> int:
        """Tokens neither reserved nor spent."""
        return self.limit - self._spent - self._taken

    async def take(self, actions: int, most: int) -> int:
        """Reserve tokens for ``actions`` actions; return the maximum for each action.

        The maximum is ``most``, or an equal share of the remaining tokens. If tokens reserved by other requests
        leave too few, wait for their release.

        Args:
            actions: number of actions of the request.
            most: requested maximum length of an action, in tokens.

        Raises:
            RequestError: less than one token per action remains.
        """
        if not self.limit:
            return most
        async with self._turn:
            while self._taken and self.left < actions * most:
                self._given.clear()
                await self._given.wait()
            share = min(most, self.left // actions)
            if share < 1:
                raise spent("tokens", self.limit)
            self._taken += actions * share
            return share

    def give_back(self, taken: int, sampled: int) -> None:
        """Release a reservation and count sampled tokens against the budget.

        Args:
            taken: number of reserved tokens.
            sampled: number of sampled tokens.
        """
        self._spent += sampled
        self._taken -= taken if self.limit else 0
        self._given.set()
