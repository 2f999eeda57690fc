"""Function ``play`` for one episode: a task and a team."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from marft.agents import reading
from marft.agents.game import Attempt, Game
from marft.agents.loop_threads import LoopThread, OverdueError, RaisedError
from marft.agents.planting import shown
from marft.agents.tasks import own_copy
from marft.agents.turns import Turns
from marft.common.errors import EpisodeFailedError
from marft.common.faults import defined
from marft.common.seeds import derive_seed
from marft.common.texts import name_of
from marft.common.types import Episode, Status, Step


async def play(game: Game, attempt: Attempt) -> Episode:
    """Run one episode to its end.

    An error in the environment or the organization makes the episode ``failed`` or ``timed_out``, with the reason.
    It never becomes a reward.
    """
    # the episode's own copy; sessions, tools and reward terms get separate copies
    attempt = replace(attempt, task=own_copy(attempt.task))
    game = replace(game, team=game.team.played_by(attempt.policies).told(may_ask=attempt.questions > 0))
    turns = Turns(game, attempt)
    thread = game.threads.acquire()
    status: Status = "failed"
    error = ""
    try:
        turns.open()
        status = await _run(attempt, turns, Outside(game, thread))
    except EpisodeFailedError as failure:
        status, error = failure.status, failure.reason
    finally:
        turns.close()
        with game.engine.external_wait():
            try:
                await turns.belt.close()
            finally:
                await game.threads.release(thread, suspect=status in ("failed", "timed_out"))
    return turns.episode(status, error)


async def _run(attempt: Attempt, turns: Turns, outside: Outside) -> Status:
    game, origin = turns.game, attempt.replay or attempt
    seed = derive_seed(game.seed, "session", origin.stream, attempt.task.id, origin.sample)
    roles = {agent.role for agent in game.team.agents}
    session = await outside.call("start", reading.started, game.environment, own_copy(attempt.task), seed)
    try:
        observation = shown(await outside.call("reset", reading.reset, session), attempt.plants)
        if game.tools:
            await outside.call("tools", turns.belt.join, session, outside.thread)
        while True:
            joint = await turns.act(observation)
            stepped = await outside.call("step", reading.stepped, session, joint, roles, attempt.task)
            step: Step = stepped[0]
            turns.record(observation, *stepped)
            observation = step.observation
            if step.terminated:
                return "terminated"
            if attempt.replay and attempt.replay.pause and turns.first_fresh:
                return "paused"
            if step.truncated or len(turns.transitions) >= game.max_steps:
                turns.bootstrap(observation)
                return "truncated"
    finally:
        await outside.close(session)


class Outside:
    """Caller for one episode's environment: on a thread of its own, with a timeout."""

    def __init__(self, game: Game, thread: LoopThread) -> None:
        self.game, self.thread = game, thread
        self.hung = False  # a call exceeded its timeout

    async def call(self, method: str, function: Callable[..., object], *arguments: object) -> Any:
        """Run ``function(*arguments)``, which calls the environment's or session's ``method``.

        Raises:
            EpisodeFailedError: the method raised, exceeded the timeout, or returned an invalid value.
        """
        who = f"environment {name_of(self.game.environment)}: {method}()"
        try:
            with self.game.engine.external_wait():
                return await self.thread.call_theirs(
                    function, *arguments, timeout=self.game.timeout, passing=reading.RefusedError
                )
        except OverdueError as error:
            self.hung = True
            raise EpisodeFailedError("timed_out", f"{who} took over {self.game.timeout:g} s") from error
        except RaisedError as error:
            raise EpisodeFailedError("failed", f"{who} raised {error}") from error
        except reading.RefusedError as error:
            owner = type(self.game.environment if method == "start" else arguments[0])
            raise EpisodeFailedError("failed", f"{who} {error} ({defined(getattr(owner, method, owner))})") from error

    async def close(self, session: Any) -> None:
        """Close a session. Failures are counted and do not change the episode's outcome."""
        if self.hung and not await self.thread.responsive():
            self.thread.later(lambda: reading.closed(session))
            return
        try:
            await self.call("close", reading.closed, session)
        except EpisodeFailedError:
            self.game.threads.not_closed += 1
