"""Episodes: ``play`` runs one, ``play_all`` runs many concurrently; the engine batches their requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from marft.agents.episode_runner import EpisodeRunner
from marft.agents.game import Attempt, Game
from marft.agents.task_copies import copy_task
from marft.common.types import Episode

Result = TypeVar("Result")


async def play(game: Game, attempt: Attempt) -> Episode:
    """Run one episode to its end.

    An error in the environment or the organization makes the episode ``failed`` or ``timed_out``, with the reason.
    It never becomes a reward.
    """
    # the episode's own copy; sessions, tools and reward terms get separate copies
    attempt = replace(attempt, task=copy_task(attempt.task))
    team = game.team.with_policies(attempt.policies).describe_helpers(may_ask=attempt.max_helper_calls > 0)
    return await EpisodeRunner(replace(game, team=team), attempt).run()


async def keep_rewards(episode: Episode) -> Episode:
    """Return the episode with the environment's rewards unchanged."""
    return episode


async def play_all(
    game: Game,
    attempts: Sequence[Attempt],
    max_live: int | asyncio.Semaphore,
    on_episode: Callable[[Episode], None] = lambda _: None,
    compose: Callable[[Episode], Awaitable[Episode]] = keep_rewards,
) -> list[Episode]:
    """Run every attempt, at most ``max_live`` at a time, and return the episodes in the order of the attempts.

    Args:
        max_live: maximum concurrent episodes, or a semaphore shared with other callers.
        on_episode: callback for each finished and composed episode.
        compose: final processing of a finished episode, after it stops counting as live.
    """
    gate = asyncio.Semaphore(max_live) if isinstance(max_live, int) else max_live
    return await run_bounded(gate, attempts, partial(play, game), compose, on_episode)


async def run_bounded(
    gate: asyncio.Semaphore,
    attempts: Sequence[Attempt],
    begin: Callable[[Attempt], Awaitable[Result]],
    finish: Callable[[Result], Awaitable[Episode]],
    on_episode: Callable[[Episode], None],
) -> list[Episode]:
    """Run every attempt under the semaphore, and return the episodes in the order of the attempts.

    Args:
        gate: limits concurrent attempts.
        begin: runs an attempt while it counts as live.
        finish: makes an episode from the result of ``begin``.
        on_episode: callback for each finished episode.
    """

    async def run_attempt(attempt: Attempt) -> Episode:
        """Run one attempt."""
        async with gate:
            result = await begin(attempt)
        episode = await finish(result)
        on_episode(episode)
        return episode

    tasks = [asyncio.create_task(run_attempt(attempt)) for attempt in attempts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            # cancel once only: a second cancellation would interrupt the closing of its session
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # wait until every session is closed
