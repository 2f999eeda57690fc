"""Concurrent episodes in asyncio tasks; the engine batches waiting requests."""

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
    """Return the episode with the environment's rewards unchanged."""
    return episode


async def play_all(
    game: Game,
    attempts: Sequence[Attempt],
    max_live: int | asyncio.Semaphore,
    on_done: Callable[[Episode], None] = lambda _: None,
    compose: Callable[[Episode], Awaitable[Episode]] = as_it_is,
) -> list[Episode]:
    """Run every attempt, at most ``max_live`` at a time, and return the episodes in the order of the attempts.

    Args:
        max_live: maximum concurrent episodes, or a semaphore shared with other callers.
        on_done: callback for each finished and composed episode.
        compose: final processing of a finished episode, after it stops counting as live.
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
    """Run every attempt under the semaphore, and return the episodes in the order of the attempts.

    Args:
        gate: limits concurrent attempts.
        begin: runs an attempt while it counts as live.
        finish: makes an episode from the result of ``begin``.
        on_done: callback for each finished episode.
    """

    async def one(attempt: Attempt) -> Episode:
        """Run one attempt."""
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
            # cancel once only: a second cancellation would interrupt the closing of its session
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # wait until every session is closed
