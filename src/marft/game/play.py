"""``play``: one task, one team, one episode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from marft.game.agents import Agent
from marft.game.game import Attempt, EpisodeFailedError, Game
from marft.game.hosting import HostThread
from marft.game.turns import Turns, describe
from marft.seeds import derive_seed
from marft.types import (
    Episode,
    Status,
    Step,
)


async def play(game: Game, attempt: Attempt) -> Episode:
    """Play one episode to its end.

    Whatever goes wrong in the environment or the organization makes the episode ``failed`` or ``timed_out``, with
    the reason; it never becomes a reward.
    """
    turns = Turns(game, attempt)
    thread = game.host.acquire()
    status: Status = "failed"
    error = ""
    try:
        status = await _run(game, attempt, turns, thread)
    except EpisodeFailedError as failure:
        status, error = failure.status, failure.reason
    finally:
        with game.engine.outside():
            try:
                await turns.belt.close()
            finally:
                await game.host.release(thread, suspect=status == "timed_out")
    return turns.episode(status, error)


async def _run(game: Game, attempt: Attempt, turns: Turns, thread: HostThread) -> Status:
    origin = attempt.replay or attempt
    key = (origin.stream, attempt.task.id, origin.sample)
    session = await _outside(
        game, thread, game.environment.start, attempt.task, derive_seed(game.seed, "session", *key)
    )
    try:
        observation = await _outside(game, thread, session.reset)
        turns.belt.join(session, thread)
        while True:
            joint = await turns.act(observation)
            step = await _outside(game, thread, session.step, joint)
            turns.record(observation, _checked(step, game.team.agents))
            observation = step.observation
            if step.terminated:
                return "terminated"
            if attempt.replay and attempt.replay.pause and turns.first_fresh:
                return "paused"
            if step.truncated or len(turns.transitions) >= game.max_steps:
                turns.bootstrap(observation)
                return "truncated"
    finally:
        await _close(game, thread, session)


async def _outside(game: Game, thread: HostThread, function: Any, *arguments: Any) -> Any:
    """Call into the environment, on its thread, within the time limit."""
    name = getattr(function, "__name__", "call")
    try:
        with game.engine.outside():
            return await thread.call(function, *arguments, timeout=game.timeout)
    except TimeoutError as error:
        raise EpisodeFailedError("timed_out", f"environment {name}() took over {game.timeout:g} s") from error
    except Exception as error:
        raise EpisodeFailedError("failed", f"environment {name}() raised {describe(error)}") from error


async def _close(game: Game, thread: HostThread, session: Any) -> None:
    try:
        await _outside(game, thread, session.close)
    except EpisodeFailedError:
        return  # the episode's own outcome stands


def _checked(step: Any, agents: Sequence[Agent]) -> Step:
    if not isinstance(step, Step):
        raise EpisodeFailedError("failed", f"environment step() returned {type(step).__name__}, not marft.types.Step")
    roles = {agent.role for agent in agents}
    for who, reward in (("the team", step.reward), *step.agent_rewards.items()):
        if not isinstance(reward, int | float | np.number) or not math.isfinite(reward):
            raise EpisodeFailedError("failed", f"environment step() gave {who} a reward of {reward!r}; must be finite")
        if who != "the team" and who not in roles:
            raise EpisodeFailedError("failed", f"environment step() rewards an agent {who!r} that is not in the team")
    return step
