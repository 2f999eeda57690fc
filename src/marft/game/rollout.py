"""Many episodes at once, as asyncio tasks; the engine batches whatever is waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from marft.game.game import Attempt, Game
from marft.game.play import play
from marft.types import Episode


async def play_all(
    game: Game, attempts: Sequence[Attempt], max_live: int, on_done: Callable[[Episode], None] = lambda _: None
) -> list[Episode]:
    """Play every attempt, at most ``max_live`` at a time → episodes in the order of the attempts."""
    gate = asyncio.Semaphore(max_live)

    async def one(attempt: Attempt) -> Episode:
        async with gate:
            episode = await play(game, attempt)
        on_done(episode)
        return episode

    tasks = [asyncio.create_task(one(attempt)) for attempt in attempts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
