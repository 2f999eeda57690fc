"""Function ``play`` for one episode: a task and a team."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from marft.agents import environment_calls
from marft.agents.episode_runner import EpisodeRunner
from marft.agents.game import Attempt, Game
from marft.agents.loop_threads import CallTimeoutError, LoopThread, UserCodeError
from marft.agents.prompt_injection import inject_observation
from marft.agents.task_copies import copy_task
from marft.common.error_origin import source_location
from marft.common.errors import EpisodeFailedError
from marft.common.seeds import derive_seed
from marft.common.texts import display_name
from marft.common.types import Episode, Status, Step


async def play(game: Game, attempt: Attempt) -> Episode:
    """Run one episode to its end.

    An error in the environment or the organization makes the episode ``failed`` or ``timed_out``, with the reason.
    It never becomes a reward.
    """
    # the episode's own copy; sessions, tools and reward terms get separate copies
    attempt = replace(attempt, task=copy_task(attempt.task))
    game = replace(
        game, team=game.team.with_policies(attempt.policies).describe_helpers(may_ask=attempt.max_helper_calls > 0)
    )
    turns = EpisodeRunner(game, attempt)
    thread = game.threads.acquire()
    status: Status = "failed"
    error = ""
    try:
        turns.open()
        status = await _run(attempt, turns, EnvironmentCaller(game, thread))
    except EpisodeFailedError as failure:
        status, error = failure.status, failure.reason
    finally:
        turns.close()
        with game.engine.external_wait():
            try:
                await turns.tool_executor.close()
            finally:
                await game.threads.release(thread, failed=status in ("failed", "timed_out"))
    return turns.build_episode(status, error)


async def _run(attempt: Attempt, turns: EpisodeRunner, caller: EnvironmentCaller) -> Status:
    game, origin = turns.game, attempt.replay or attempt
    seed = derive_seed(game.seed, "session", origin.stream, attempt.task.id, origin.sample)
    roles = {agent.role for agent in game.team.agents}
    session = await caller.call(
        "start", environment_calls.start_session, game.environment, copy_task(attempt.task), seed
    )
    try:
        observation = inject_observation(
            await caller.call("reset", environment_calls.reset_session, session), attempt.injections
        )
        if game.tools:
            await caller.call("tools", turns.tool_executor.add_environment, session, caller.thread)
        while True:
            joint = await turns.act(observation)
            result = await caller.call("step", environment_calls.step_session, session, joint, roles, attempt.task)
            step: Step = result[0]
            turns.record_step(observation, *result)
            observation = step.observation
            if step.terminated:
                return "terminated"
            if attempt.replay and attempt.replay.pause and turns.first_sampled:
                return "paused"
            if step.truncated or len(turns.transitions) >= game.max_steps:
                turns.add_bootstrap(observation)
                return "truncated"
    finally:
        await caller.close(session)


class EnvironmentCaller:
    """Caller for one episode's environment: on a thread of its own, with a timeout."""

    def __init__(self, game: Game, thread: LoopThread) -> None:
        self.game, self.thread = game, thread
        self.timed_out = False  # a call exceeded its timeout

    async def call(self, method: str, function: Callable[..., object], *arguments: object) -> Any:
        """Run ``function(*arguments)``, which calls the environment's or session's ``method``.

        Raises:
            EpisodeFailedError: the method raised, exceeded the timeout, or returned an invalid value.
        """
        caller = f"environment {display_name(self.game.environment)}: {method}()"
        try:
            with self.game.engine.external_wait():
                return await self.thread.call_user_code(
                    function, *arguments, timeout=self.game.timeout, passthrough=environment_calls.RefusedError
                )
        except CallTimeoutError as error:
            self.timed_out = True
            raise EpisodeFailedError("timed_out", f"{caller} took over {self.game.timeout:g} s") from error
        except UserCodeError as error:
            raise EpisodeFailedError("failed", f"{caller} raised {error}") from error
        except environment_calls.RefusedError as error:
            owner = type(self.game.environment if method == "start" else arguments[0])
            raise EpisodeFailedError(
                "failed", f"{caller} {error} ({source_location(getattr(owner, method, owner))})"
            ) from error

    async def close(self, session: Any) -> None:
        """Close a session. Failures are counted and do not change the episode's outcome."""
        if self.timed_out and not await self.thread.is_responsive():
            self.thread.call_later(lambda: environment_calls.close_session(session))
            return
        try:
            await self.call("close", environment_calls.close_session, session)
        except EpisodeFailedError:
            self.game.threads.failed_closes += 1
