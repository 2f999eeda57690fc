"""The tokens that an episode's agents may sample: what is under way counts as all that it may come to."""

from __future__ import annotations

import asyncio

from marft_serve.gateway.refusals import spent


class Budget:
    """Tokens are taken before anything is sampled, and what was not sampled is given back: requests that come at once
    cannot spend the same ones. All of it is used on one event loop.

    Args:
        limit: 0 is none.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._spent = self._taken = 0
        self._turn = asyncio.Lock()  # requests take theirs in the order in which they come
        self._given = asyncio.Event()

    @property
    def left(self) -> int:
        """What nobody has taken or spent."""
        return self.limit - self._spent - self._taken

    async def take(self, actions: int, most: int) -> int:
        """Take what some actions may come to → tokens that each may sample: ``most``, or its share of what is left.
        While others have taken too much for that it waits for what they give back.

        Raises:
            RequestError: there is less than a token left for each.
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
        """Those that took so many tokens are done, and have sampled so many."""
        self._spent += sampled
        self._taken -= taken if self.limit else 0
        self._given.set()
