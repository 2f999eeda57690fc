"""Many episodes at once, as asyncio tasks; the engine batches whatever is waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from marft.agents.game import Attempt, Game
from marft.agents.play import play
from marft.common.types import Episode

Played = TypeVar("Played")


async def as_it_is(episode: Episode) -> Episode:
    """The episode with what the environment paid."""
    return episode


async def play_all(
    game: Game,
    attempts: Sequence[Attempt],
    max_live: int | asyncio.Semaphore,
    on_done: Callable[[Episode], None] = lambda _: None,
    compose: Callable[[Episode], Awaitable[Episode]] = as_it_is,
) -> list[Episode]:
    """Play every attempt, at most ``max_live`` at a time → episodes in the order of the attempts.

    Args:
        max_live: a number, or a gate for so many that is shared with others.
        on_done: sees each episode as soon as it is over and composed.
        compose: what becomes of an episode that is over; it no longer counts as live then.
    """
    gate = asyncio.Semaphore(max_live) if isinstance(max_live, int) else max_live
    return await at_most(gate, attempts, partial(play, game), compose, on_done)


async def at_most(
    gate: asyncio.Semaphore,
    attempts: Sequence[Attempt],
    begin: Callable[[Attempt], Awaitable[Played]],
    finish: Callable[[Played], Awaitable[Episode]],
    on_done: Callable[[Episode], None],
) -> list[Episode]:
    """Begin and finish every attempt, as many at a time as the gate lets in → episodes in the order of the attempts.

    Args:
        begin: plays an attempt, until it no longer counts as live.
        finish: makes an episode of that.
        on_done: sees each episode as soon as it is finished.
    """

    async def one(attempt: Attempt) -> Episode:
        async with gate:
            played = await begin(attempt)
        episode = await finish(played)
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
