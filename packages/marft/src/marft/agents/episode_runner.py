"""One episode from reset to close: the environment's session, the team's organization, and the record of both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from marft.agents import environment_calls
from marft.agents.action_requests import REPLAY_MISMATCH, ActionRequests
from marft.agents.agents import ExternalContext, Outcome, TeamAgents
from marft.agents.game import Attempt, Game
from marft.agents.loop_threads import CallTimeoutError, LoopThread, UserCodeError, is_canceled
from marft.agents.prompt_injection import inject_observation
from marft.agents.task_copies import copy_task
from marft.agents.team import close_organization, open_organization
from marft.agents.tool_executor import ToolExecutor
from marft.common.error_origin import describe_error, source_location
from marft.common.errors import EpisodeFailedError
from marft.common.texts import MAX_ERROR_LENGTH, display_name, replace_surrogates, truncate
from marft.common.types import (
    Action,
    Episode,
    Fork,
    JointAction,
    Observation,
    Status,
    Step,
    StepInfo,
    TokenIds,
    Transition,
)

GRACE_SECONDS = 0.5  # grace period in seconds for a cancelled organization to end


class EpisodeRunner:
    """Runner of one episode. An error in the environment or the organization ends it, and never becomes a reward."""

    def __init__(self, game: Game, attempt: Attempt) -> None:
        self.game, self.attempt = game, attempt
        self._started_at = time.time()
        self._tools = ToolExecutor(
            game.tools, game.threads, game.engine, attempt.task, game.seed_for("tools", attempt), attempt.injections
        )
        self._requests = ActionRequests(game, attempt, self._tools)
        self._organization = game.team.organization
        self._outcome = Outcome()
        self._transitions: list[Transition] = []
        self._success: bool | None = None
        self._bootstrap: dict[str, TokenIds] = {}  # by agent: prompt after a truncated episode

    async def run(self) -> Episode:
        """Run the episode to its end, and release everything that it opened."""
        game, attempt = self.game, self.attempt
        thread = game.threads.acquire()
        status: Status = "failed"
        error = ""
        try:
            seed = game.seed_for("organization", attempt)
            self._organization = open_organization(game.team.organization, attempt.task, seed)
            status = await self._run_steps(EnvironmentCaller(game, thread))
        except EpisodeFailedError as failure:
            status, error = failure.status, failure.reason
        finally:
            if not close_organization(game.team.organization, self._organization):
                game.threads.failed_closes += 1
            with game.engine.external_wait():
                try:
                    await self._tools.close()
                finally:
                    await game.threads.release(thread, failed=status in ("failed", "timed_out"))
        return self._build_episode(status, error)

    async def _run_steps(self, caller: EnvironmentCaller) -> Status:
        game, attempt = self.game, self.attempt
        roles = {agent.role for agent in game.team.agents}
        session = await caller.call(
            "start",
            environment_calls.start_session,
            game.environment,
            copy_task(attempt.task),
            game.seed_for("session", attempt),
        )
        try:
            first = await caller.call("reset", environment_calls.reset_session, session)
            observation = inject_observation(first, attempt.injections)
            if game.tools:
                await caller.call("tools", self._tools.add_environment, session, caller.thread)
            while True:
                joint = await self._act(observation)
                result = await caller.call("step", environment_calls.step_session, session, joint, roles, attempt.task)
                step: Step = result[0]
                self._record_step(observation, *result)
                observation = step.observation
                if step.terminated:
                    return "terminated"
                if attempt.replay and attempt.replay.pause and self._requests.first_sampled:
                    return "paused"
                if step.truncated or len(self._transitions) >= game.max_steps:
                    if attempt.record_critic_states:
                        self._bootstrap = self._requests.final_prompts(observation)
                    return "truncated"
        finally:
            await caller.close(session)

    async def _act(self, observation: Observation) -> JointAction:
        """Let the organization act once; return the joint action with all actions and the default answer filled in.

        Raises:
            EpisodeFailedError: the organization or one of its actions failed.
        """
        requests, step, replay = self._requests, len(self._transitions), self.attempt.replay
        if replay and step < len(replay.observations) and observation.full_text != replay.observations[step]:
            raise EpisodeFailedError("failed", f"replaying step {step}: the environment shows {REPLAY_MISMATCH}")
        if self.game.callback:
            self.game.callback.on_observation(observation)
        try:
            with requests.open_step(step):
                joint = await self._run_organization(step, observation)
        except EpisodeFailedError:
            raise
        except BaseException as error:
            if is_canceled():
                raise
            if requests.failure:
                raise requests.failure from error  # our own error, even if the organization wrapped it
            raise self._organization_error(f"raised {describe_error(error)}") from error
        if requests.failure:
            raise requests.failure  # an organization cannot continue without an action that it requested
        actions = requests.step_actions()
        text_answer = self._outcome.select_answer(actions, self.attempt.key(step))
        return JointAction(joint.answer or text_answer or self._default_answer(actions), tuple(actions))

    async def _run_organization(self, step: int, observation: Observation) -> JointAction:
        """Return the organization's joint action for an observation.

        An organization that waits for no agent is cancelled after the timeout for environment calls.
        """
        task = asyncio.ensure_future(self._call_organization(step, observation))
        limit = None if self._organization.own_timeout else self.game.timeout
        requests = self._requests
        try:
            while not task.done():
                idle, count = requests.active_count == 0, requests.count
                await asyncio.wait([task], timeout=limit)
                if not task.done() and idle and requests.count == count:
                    raise self._organization_error(f"waited over {self.game.timeout:g} s for no agent", "timed_out")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=GRACE_SECONDS)
        return task.result()

    async def _call_organization(self, step: int, observation: Observation) -> JointAction:
        game, requests = self.game, self._requests
        external_context = ExternalContext(
            external_wait=game.engine.external_wait, threads=game.threads, renderer=game.renderer
        )
        handles = TeamAgents(
            game.team.agents, partial(requests.request, step), partial(requests.reply, step), external_context
        )
        try:
            joint: object = await self._organization.act(observation, handles)
            if not isinstance(joint, JointAction):
                name = type(joint).__name__
                raise EpisodeFailedError(
                    "failed", f"the organization returned {name}, not marft.common.types.JointAction"
                )
            self._outcome = joint if isinstance(joint, Outcome) else Outcome()
            answer = joint.answer
        except (SystemExit, KeyboardInterrupt) as error:  # asyncio would end the event loop shared by all episodes
            raise self._organization_error(f"raised {describe_error(error)}") from error
        if answer is not None:
            requests.check_origin("the team", "answers with", answer)
        return JointAction(answer)

    def _organization_error(
        self, problem: str, status: Literal["failed", "timed_out"] = "failed"
    ) -> EpisodeFailedError:
        return EpisodeFailedError(status, f"the organization {display_name(self._organization)} {problem}")

    def _default_answer(self, actions: list[Action]) -> Action | None:
        answer_roles = {agent.role for agent in self.game.team.agents if agent.profile.answers}
        return next((action for action in reversed(actions) if action.agent in answer_roles), None)

    def _record_step(self, observation: Observation, step: Step, step_info: StepInfo) -> None:
        step = self._outcome.apply_grade(step)
        self._transitions.append(Transition(observation, step.reward, step.agent_rewards, declared=step_info))
        self._success = step.success if step.success is not None else self._success

    def _build_episode(self, status: Status, error: str) -> Episode:
        attempt, replay, requests = self.attempt, self.attempt.replay, self._requests
        return Episode(
            task=attempt.task,
            stream=attempt.stream,
            sample=attempt.sample,
            actions=tuple(requests.actions[index] for index in sorted(requests.actions)),
            status=status,
            transitions=tuple(self._transitions),
            success=self._success,
            error=truncate(replace_surrogates(error), 2 * MAX_ERROR_LENGTH),
            bootstrap=self._bootstrap,
            seconds=requests.elapsed_seconds(),
            start_time=self._started_at,
            fork=Fork(replay.origin, replay.fork_id or requests.first_sampled) if replay else None,
        )


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
