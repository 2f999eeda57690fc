"""Episode player for environment checks.

As in a run, each session has its own thread. Each call is timed, and its result is validated by the same code as in a
run.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from marft.agents import reading
from marft.agents.environment import Split
from marft.agents.loop_threads import LoopThreadPool, OverdueError, RaisedError
from marft.agents.tasks import own_copy
from marft.agents.tools.functions import SessionSource
from marft.common.marks import Mark
from marft.common.texts import storable
from marft.common.types import Action, ActionKey, JointAction, Observation, Profile, Step, Task, ToolCall
from marft_envs.vetting.limits import Limits
from marft_envs.vetting.loading import written
from marft_envs.vetting.players import Moment, Player
from marft_envs.vetting.plays import Call, Fault, Play, Said, Wrong
from marft_envs.vetting.stopwatch import Stopwatch
from marft_envs.vetting.subject import ALONE, Subject

STREAM = "vetting"
Before = Callable[[], object]
Gate = Callable[[], AbstractAsyncContextManager[object]]


class Stage:
    """Player for episodes in a single environment.

    Attributes:
        profiles: profiles of the team, as far as known.
    """

    def __init__(self, subject: Subject, limits: Limits) -> None:
        self.subject, self.limits = subject, limits
        self.threads = LoopThreadPool()
        self.profiles = subject.profiles or (ALONE,)
        self.guessed = not subject.profiles  # True if the team is known only from the environment's output
        offers = subject.environment.offers
        self.tools = SessionSource(offers) if offers is not None else None
        self.most_steps = subject.most_steps or limits.most_steps

    @property
    def roles(self) -> tuple[str, ...]:
        """Return the team's roles."""
        return tuple(profile.role for profile in self.profiles)

    async def play(
        self,
        task: Task,
        split: Split,
        seed: int,
        name: str,
        player: Player,
        before: Before = lambda: None,
        gate: Gate = nullcontext,
        most_steps: int | None = None,
    ) -> Play:
        """Play an episode to its end and return its record, faults included.

        Args:
            task: task to play.
            split: split of the task.
            seed: seed of the session.
            name: description of the player.
            player: player of every role.
            before: function that runs on the session's thread before each call.
            gate: context manager held during each call.
            most_steps: maximum steps; None for the episode limit.
        """
        most = self.most_steps if most_steps is None else most_steps
        return await _Episode(self, task, split, seed, name, before, gate, most).play(player)

    def meet(self, roles: Collection[str]) -> None:
        """Add roles named by the environment, if the team is not known."""
        known = self.roles if self.profiles != (ALONE,) or not roles else ()
        self.profiles = tuple(Profile(role) for role in dict.fromkeys((*known, *roles)))

    def joint(self, task: Task, step: int, said: Mapping[str, Said]) -> JointAction:
        """Return the team's joint action for a step, as in a run."""
        actions = [_action(task, step, index, role, one) for index, (role, one) in enumerate(said.items())]
        answering = {profile.role for profile in self.profiles if profile.answers} or set(self.roles)
        answer = next((action for action in reversed(actions) if action.agent in answering), None)
        return JointAction(answer, tuple(actions))

    def close(self) -> None:
        """Close the threads."""
        self.threads.close()


class _StoppedError(Exception):
    """Abort of an episode after a fault."""


class _Episode:
    def __init__(
        self, stage: Stage, task: Task, split: Split, seed: int, name: str, before: Before, gate: Gate, most_steps: int
    ) -> None:
        self.stage, self.task, self.split, self.seed, self.name = stage, task, split, seed, name
        self.given = own_copy(task)
        self.before, self.gate, self.most_steps = before, gate, most_steps
        self.thread = stage.threads.acquire()
        self.said, self.shown, self.steps = list[Mapping[str, Said]](), list[Observation](), list[Step]()
        self.calls, self.faults = list[Call](), list[Fault]()
        self.session: Any = None
        self.ended = False

    async def play(self, player: Player) -> Play:
        try:
            await self._played(player)
        except _StoppedError:
            pass
        finally:
            hung = any(fault.wrong == "hung" for fault in self.faults)
            if self.session is not None and not hung:
                await self._closed()
            await self.stage.threads.release(self.thread, suspect=hung)
        return Play(
            self.task,
            self.split,
            self.seed,
            self.name,
            tuple(self.said),
            tuple(self.shown),
            tuple(self.steps),
            tuple(self.calls),
            tuple(self.faults),
            self.ended,
            written([self.given]) != written([self.task]),
        )

    async def _played(self, player: Player) -> None:
        environment = self.stage.subject.environment
        self.session = await self._call("start", reading.started, environment, self.given, self.seed)
        observation = self._read("observation", "reset", reading.whole, await self._call("reset", self.session.reset))
        while True:
            self.shown.append(observation)
            self._check_roles(observation)
            if self.ended or len(self.steps) >= self.most_steps:
                return
            roles = observation.turn or self.stage.roles
            moment = Moment(observation, len(self.steps), roles, self._use)
            try:
                self.said.append(await player(moment))
            except RaisedError as error:
                raise self._fault("raised", "script", str(error)) from error
            step = await self._call(
                "step", self.session.step, self.stage.joint(self.task, len(self.steps), self.said[-1])
            )
            observation = self._taken(step)

    def _taken(self, step: object) -> Observation:
        """Validate a step and record it."""
        if not isinstance(step, Step):
            raise self._fault("step", "step", f"returned {type(step).__name__}, not marft.common.types.Step")
        terminated = self._read("step", "step", reading.flag, step.terminated, "terminated")
        truncated = self._read("step", "step", reading.flag, step.truncated, "truncated")
        success = None if step.success is None else self._read("step", "step", reading.flag, step.success, "success")
        reward = self._read("reward", "step", reading.number, step.reward, "gave the team a reward of")
        if self.stage.guessed and isinstance(step.agent_rewards, Mapping):
            self.stage.meet([role for role in step.agent_rewards if isinstance(role, str)])
        own = self._read("reward", "step", reading.own_rewards, step.agent_rewards, self.stage.roles)
        self._read("declared", "step", reading.declared, step.info, self.task.data)
        self.ended = terminated or truncated
        observation: Observation = self._read("observation", "step", reading.whole, step.observation)
        self.steps.append(Step(observation, reward, terminated, truncated, own, success))
        return observation

    def _check_roles(self, observation: Observation) -> None:
        """Check that an observation names only known roles. In an unknown team, add new roles."""
        strangers = [
            role
            for role in (*observation.turn, *observation.views, *observation.options)
            if role not in self.stage.roles
        ]
        if strangers and self.stage.guessed:
            self.stage.meet(strangers)
        elif strangers:
            call = "step" if self.steps else "reset"
            raise self._fault("observation", call, f"speaks of {strangers[0]!r}, who is not in the team")

    async def _call(self, name: str, function: Callable[..., Any], *arguments: object) -> Any:
        """Call a function on the session's thread.

        Raises:
            _StoppedError: the call failed; the fault is recorded.
        """
        watch = Stopwatch()

        async def run() -> Any:
            self.before()
            return await watch.run(function, *arguments)

        try:
            async with self.gate():
                return await self.thread.call_theirs(
                    run, timeout=self.stage.limits.call_seconds, passing=reading.RefusedError
                )
        except OverdueError as error:
            raise self._fault("hung", name, str(error)) from error
        except RaisedError as error:
            raise self._fault("close" if name == "close" else "raised", name, str(error)) from error
        except reading.RefusedError as error:
            raise self._fault("step", name, str(error)) from error
        finally:
            self.calls.append(watch.call(name))

    def _read(self, wrong: Wrong, call: str, read: Callable[..., Any], *given: object) -> Any:
        try:
            return read(*given)
        except reading.RefusedError as error:
            raise self._fault(wrong, call, str(error)) from error

    def _fault(self, wrong: Wrong, call: str, said: str) -> _StoppedError:
        self.faults.append(Fault(wrong, call, said))
        return _StoppedError(said)

    async def _closed(self) -> None:
        try:
            await self._call("close", self.session.close)
        except _StoppedError:
            return  # already recorded

    async def _use(self, call: ToolCall) -> ToolCall:
        """Call a session's tool and return its output. Errors become the output for the agent."""
        tools = self.stage.tools
        if tools is None or call.name not in tools.functions:
            return replace(call, output=f"no tool is called {call.name!r}", error=True)
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError) as error:
            return replace(call, output=f"the arguments are no valid JSON: {error}", error=True)
        if not isinstance(arguments, dict):
            return replace(call, output="the arguments must be a JSON object", error=True)
        joined = tools.joined(self.session)
        try:
            output = await self._call(call.name, joined.call, call.name, arguments)
        except _StoppedError as error:
            if self.faults[-1].wrong == "hung":
                raise
            self.faults.pop()
            return replace(call, output=str(error), error=True)
        return replace(call, output=storable(str(output)))


def _action(task: Task, step: int, index: int, role: str, said: Said) -> Action:
    return Action(
        ActionKey(STREAM, task.id, 0, step, role, 0),
        "base",
        index,
        (),
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
        np.full(1, Mark.SAMPLED, np.uint8),
        np.zeros(1, np.float32),
        said.text,
        "stop",
        calls=said.calls,
    )


def reseeded(seed: int) -> Before:
    """Return a function that seeds the global random generators."""

    def seed_all() -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(seed)

    return seed_all


def in_turns() -> Gate:
    """Return a gate that serializes calls from several episodes, in order."""
    lock = asyncio.Lock()

    @asynccontextmanager
    async def gate() -> AsyncIterator[None]:
        async with lock:
            yield

    return gate
