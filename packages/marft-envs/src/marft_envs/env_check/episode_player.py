"""Episode player for environment checks.

As in a run, each session has its own thread. Each call is timed: its total duration, and its longest blocking stretch.
Its result is validated by the same code as in a run.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from marft.agents import environment_calls
from marft.agents.loop_threads import CallTimeoutError, LoopThreadPool, UserCodeError
from marft.agents.task_copies import copy_task
from marft.agents.tools.functions import SessionSource
from marft.common.texts import replace_surrogates
from marft.common.token_data import TokenSource
from marft.common.types import Action, ActionKey, AgentProfile, JointAction, Observation, Step, Task, ToolCall
from marft.config.interfaces.environment import Split
from marft_envs.env_check.loading import serialize_tasks
from marft_envs.env_check.players import Player, StepInput
from marft_envs.env_check.records import AgentReply, EpisodeRecord, Fault, FaultKind, TimedCall
from marft_envs.env_check.target import SINGLE_PROFILE, CheckTarget, Limits


class CallTimer:
    """Stopwatch for a call. It measures each stretch between two awaits."""

    def __init__(self) -> None:
        self._started_at = self._blocking = self._cpu_seconds = 0.0

    async def run(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Call ``function(*arguments)`` and await the result if it is awaitable."""
        self._started_at, self._blocking, self._cpu_seconds = time.perf_counter(), 0.0, 0.0
        result = self._time_stretch(lambda: function(*arguments))
        return await _TimedAwaitable(result, self._time_stretch) if isinstance(result, Awaitable) else result

    def last_call(self, name: str) -> TimedCall:
        """Return the timing for the last call, finished or not."""
        return TimedCall(name, time.perf_counter() - self._started_at, self._blocking, self._cpu_seconds)

    def _time_stretch(self, function: Callable[[], object]) -> object:
        started_at, cpu_start = time.perf_counter(), time.thread_time()
        try:
            return function()
        finally:
            elapsed, cpu_seconds = time.perf_counter() - started_at, time.thread_time() - cpu_start
            if elapsed > self._blocking:
                self._blocking, self._cpu_seconds = elapsed, cpu_seconds


class _TimedAwaitable:
    """Awaitable that runs each stretch through a function."""

    def __init__(self, awaitable: Awaitable[Any], time_stretch: Callable[[Callable[[], Any]], Any]) -> None:
        self.awaitable, self.time_stretch = awaitable, time_stretch

    def __await__(self) -> Generator[Any, Any, Any]:
        inner: Any = self.time_stretch(self.awaitable.__await__)
        step: Callable[[], Any] = partial(next, inner)
        while True:
            try:
                waits_for = self.time_stretch(step)
            except StopIteration as done:
                return done.value
            try:
                sent = yield waits_for
                step = partial(inner.send, sent)
            except BaseException as error:  # noqa: BLE001  it is the inner one's, cancellation included
                step = partial(inner.throw, error)


STREAM = "vetting"
BeforeCall = Callable[[], object]
CallGate = Callable[[], AbstractAsyncContextManager[object]]


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """Episode to play.

    Args:
        task: task to play.
        split: split of the task.
        seed: seed of the session.
        name: description of the player.
        player: player of every role.
    """

    task: Task
    split: Split
    seed: int
    name: str
    player: Player


class EpisodePlayer:
    """Player for episodes in a single environment.

    Attributes:
        profiles: profiles of the team, as far as known.
    """

    def __init__(self, target: CheckTarget, limits: Limits) -> None:
        self.target, self.limits = target, limits
        self.threads = LoopThreadPool()
        self.profiles = target.profiles or (SINGLE_PROFILE,)
        self.team_unknown = not target.profiles  # True if the team is known only from the environment's output
        offers = target.environment.tool_class
        self.tools = SessionSource(offers) if offers is not None else None
        self.max_steps = target.max_steps or limits.max_steps

    @property
    def roles(self) -> tuple[str, ...]:
        """Return the team's roles."""
        return tuple(profile.role for profile in self.profiles)

    async def play_episode(
        self,
        plan: EpisodePlan,
        before_call: BeforeCall = lambda: None,
        gate: CallGate = nullcontext,
        max_steps: int | None = None,
    ) -> EpisodeRecord:
        """Play an episode to its end and return its record, faults included.

        Args:
            plan: episode to play.
            before_call: function that runs on the session's thread before each call.
            gate: context manager held during each call.
            max_steps: maximum steps; None for the episode limit.
        """
        step_limit = self.max_steps if max_steps is None else max_steps
        return await _EpisodeRun(self, plan, before_call, gate, step_limit).run()

    def add_roles(self, roles: Collection[str]) -> None:
        """Add roles named by the environment, if the team is not known."""
        known_roles = self.roles if self.profiles != (SINGLE_PROFILE,) or not roles else ()
        self.profiles = tuple(AgentProfile(role) for role in dict.fromkeys((*known_roles, *roles)))

    def build_joint_action(self, task: Task, step: int, replies: Mapping[str, AgentReply]) -> JointAction:
        """Return the team's joint action for a step, as in a run."""
        actions = [_make_action(task, step, index, role, reply) for index, (role, reply) in enumerate(replies.items())]
        answering = {profile.role for profile in self.profiles if profile.answers} or set(self.roles)
        answer = next((action for action in reversed(actions) if action.agent in answering), None)
        return JointAction(answer, tuple(actions))

    def close(self) -> None:
        """Close the threads."""
        self.threads.close()


class _StoppedError(Exception):
    """Abort of an episode after a fault."""


class _EpisodeRun:
    def __init__(
        self, player: EpisodePlayer, plan: EpisodePlan, before_call: BeforeCall, gate: CallGate, max_steps: int
    ) -> None:
        self.player, self.plan, self.task, self.task_copy = player, plan, plan.task, copy_task(plan.task)
        self.before_call, self.gate, self.max_steps = before_call, gate, max_steps
        self.thread = player.threads.acquire()
        self.replies = list[Mapping[str, AgentReply]]()
        self.observations = list[Observation]()
        self.steps = list[Step]()
        self.calls, self.faults = list[TimedCall](), list[Fault]()
        self.session: Any = None
        self.ended = False

    async def run(self) -> EpisodeRecord:
        try:
            await self._run_steps()
        except _StoppedError:
            pass
        finally:
            timed_out = any(fault.kind == "hung" for fault in self.faults)
            if self.session is not None and not timed_out:
                await self._close_session()
            await self.player.threads.release(self.thread, failed=timed_out)
        return EpisodeRecord(
            self.task,
            self.plan.split,
            self.plan.seed,
            self.plan.name,
            tuple(self.replies),
            tuple(self.observations),
            tuple(self.steps),
            tuple(self.calls),
            tuple(self.faults),
            self.ended,
            serialize_tasks([self.task_copy]) != serialize_tasks([self.task]),
        )

    async def _run_steps(self) -> None:
        environment = self.player.target.environment
        self.session = await self._call_session(
            "start", environment_calls.start_session, environment, self.task_copy, self.plan.seed
        )
        observation = self._validate(
            "observation",
            "reset",
            environment_calls.validate_observation,
            await self._call_session("reset", self.session.reset),
        )
        while True:
            self.observations.append(observation)
            self._check_roles(observation)
            if self.ended or len(self.steps) >= self.max_steps:
                return
            roles = observation.turn or self.player.roles
            step_input = StepInput(observation, len(self.steps), roles, self._use_tool)
            try:
                self.replies.append(await self.plan.player(step_input))
            except UserCodeError as error:
                raise self._record_fault("raised", "script", str(error)) from error
            step = await self._call_session(
                "step", self.session.step, self.player.build_joint_action(self.task, len(self.steps), self.replies[-1])
            )
            observation = self._record_step(step)

    def _record_step(self, step: object) -> Observation:
        """Validate a step and record it."""
        if not isinstance(step, Step):
            raise self._record_fault("step", "step", f"returned {type(step).__name__}, not marft.common.types.Step")
        terminated = self._validate("step", "step", environment_calls.validate_flag, step.terminated, "terminated")
        truncated = self._validate("step", "step", environment_calls.validate_flag, step.truncated, "truncated")
        success = (
            None
            if step.success is None
            else self._validate("step", "step", environment_calls.validate_flag, step.success, "success")
        )
        reward = self._validate(
            "reward", "step", environment_calls.validate_number, step.reward, "gave the team a reward of"
        )
        if self.player.team_unknown and isinstance(step.agent_rewards, Mapping):
            self.player.add_roles([role for role in step.agent_rewards if isinstance(role, str)])
        agent_rewards = self._validate(
            "reward", "step", environment_calls.validate_rewards, step.agent_rewards, self.player.roles
        )
        self._validate("declared", "step", environment_calls.read_step_info, step.info, self.task.data)
        self.ended = terminated or truncated
        observation: Observation = self._validate(
            "observation", "step", environment_calls.validate_observation, step.observation
        )
        self.steps.append(Step(observation, reward, terminated, truncated, agent_rewards, success))
        return observation

    def _check_roles(self, observation: Observation) -> None:
        """Check that an observation names only known roles. In an unknown team, add new roles."""
        unknown_roles = [
            role
            for role in (*observation.turn, *observation.views, *observation.options)
            if role not in self.player.roles
        ]
        if unknown_roles and self.player.team_unknown:
            self.player.add_roles(unknown_roles)
        elif unknown_roles:
            call = "step" if self.steps else "reset"
            raise self._record_fault("observation", call, f"speaks of {unknown_roles[0]!r}, who is not in the team")

    async def _call_session(self, name: str, function: Callable[..., Any], *arguments: object) -> Any:
        """Call a function on the session's thread.

        Raises:
            _StoppedError: the call failed; the fault is recorded.
        """
        timer = CallTimer()

        async def run_call() -> Any:
            self.before_call()
            return await timer.run(function, *arguments)

        try:
            async with self.gate():
                return await self.thread.call_user_code(
                    run_call,
                    timeout=self.player.limits.call_timeout_seconds,
                    passthrough=environment_calls.RefusedError,
                )
        except CallTimeoutError as error:
            raise self._record_fault("hung", name, str(error)) from error
        except UserCodeError as error:
            raise self._record_fault("close" if name == "close" else "raised", name, str(error)) from error
        except environment_calls.RefusedError as error:
            raise self._record_fault("step", name, str(error)) from error
        finally:
            self.calls.append(timer.last_call(name))

    def _validate(self, kind: FaultKind, call: str, parse: Callable[..., Any], *arguments: object) -> Any:
        try:
            return parse(*arguments)
        except environment_calls.RefusedError as error:
            raise self._record_fault(kind, call, str(error)) from error

    def _record_fault(self, kind: FaultKind, call: str, message: str) -> _StoppedError:
        self.faults.append(Fault(kind, call, message))
        return _StoppedError(message)

    async def _close_session(self) -> None:
        try:
            await self._call_session("close", self.session.close)
        except _StoppedError:
            return  # already recorded

    async def _use_tool(self, call: ToolCall) -> ToolCall:
        """Call a session's tool and return its output. Errors become the output for the agent."""
        tools = self.player.tools
        if tools is None or call.name not in tools.functions:
            return replace(call, output=f"no tool is called {call.name!r}", error=True)
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError) as error:
            return replace(call, output=f"the arguments are no valid JSON: {error}", error=True)
        if not isinstance(arguments, dict):
            return replace(call, output="the arguments must be a JSON object", error=True)
        joined = tools.bind_session(self.session)
        try:
            output = await self._call_session(call.name, joined.call, call.name, arguments)
        except _StoppedError as error:
            if self.faults[-1].kind == "hung":
                raise
            self.faults.pop()
            return replace(call, output=str(error), error=True)
        return replace(call, output=replace_surrogates(str(output)))


def _make_action(task: Task, step: int, index: int, role: str, reply: AgentReply) -> Action:
    return Action(
        ActionKey(STREAM, task.id, 0, step, role, 0),
        "base",
        index,
        (),
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
        np.full(1, TokenSource.SAMPLED, np.uint8),
        np.zeros(1, np.float32),
        reply.text,
        "stop",
        calls=reply.calls,
    )


def seed_before_call(seed: int) -> BeforeCall:
    """Return a function that seeds the global random generators."""

    def seed_generators() -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(seed)

    return seed_generators


def serial_gate() -> CallGate:
    """Return a gate that serializes calls from several episodes, in order."""
    lock = asyncio.Lock()

    @asynccontextmanager
    async def gate() -> AsyncIterator[None]:
        async with lock:
            yield

    return gate
