"""Many episodes at once, as asyncio tasks; the engine batches whatever is waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from marft.game.game import Attempt, Game
from marft.game.play import play
from marft.types import Episode


async def as_it_is(episode: Episode) -> Episode:
    """The episode with what the environment paid."""
    return episode


async def play_all(
    game: Game,
    attempts: Sequence[Attempt],
    max_live: int,
    on_done: Callable[[Episode], None] = lambda _: None,
    compose: Callable[[Episode], Awaitable[Episode]] = as_it_is,
) -> list[Episode]:
    """Play every attempt, at most ``max_live`` at a time → episodes in the order of the attempts.

    Args:
        on_done: sees each episode as soon as it is over and composed.
        compose: what becomes of an episode that is over; it no longer counts as live then.
    """
    gate = asyncio.Semaphore(max_live)

    async def one(attempt: Attempt) -> Episode:
        async with gate:
            episode = await play(game, attempt)
        episode = await compose(episode)
        on_done(episode)
        return episode

    tasks = [asyncio.create_task(one(attempt)) for attempt in attempts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            if not task.cancelling():  # once: a second time would reach it while it closes its session
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # until every session is closed
