"""Tool session during an episode."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from marft.agents.agents import ToolUse
from marft.agents.loop_threads import CallTimeoutError, LoopThread, LoopThreadPool, UserCodeError
from marft.agents.prompt_injection import PromptInjection, inject_outputs
from marft.agents.task_copies import copy_task
from marft.common.errors import EpisodeFailedError
from marft.common.texts import format_error, replace_surrogates
from marft.common.types import Task, ToolCall
from marft.config.interfaces.engine import Sampler
from marft.config.interfaces.environment import Session
from marft.config.interfaces.tools import ToolSession, ToolSource
from marft.config.settings import did_you_mean

OPEN_SECONDS = 60.0
CLOSE_SECONDS = 5.0


class OpenToolSession:
    """Tool session and its thread, either its own or the environment's; calls run one at a time.

    Raises:
        ValueError: the operating system allows no more threads.
    """

    def __init__(
        self,
        source: ToolSource,
        threads: LoopThreadPool,
        task: Task,
        seed: int,
        thread: LoopThread | None = None,
        session: ToolSession | None = None,
    ) -> None:
        self.source, self.threads, self.task, self.seed = source, threads, task, seed
        self.thread = thread or threads.acquire()
        self.owns_thread = thread is None
        self._session = session
        self._open_future: asyncio.Future[None] | None = None
        self._call_lock = asyncio.Lock()
        self._close_lock = threading.Lock()  # decides which side ends a session that opens while the episode ends
        self._closed = False
        self._blocked = False

    async def call(self, tool: str, arguments: Mapping[str, object], seconds: float) -> str:
        """Call a tool; the timeout excludes the wait for earlier calls and for opening the session.

        Args:
            seconds: timeout of the call.

        Raises:
            CallTimeoutError: the call exceeded its timeout.
            UserCodeError: the tool raised an error.
            RuntimeError: an earlier call never ended, or the tools could not be opened within ``OPEN_SECONDS``.
        """
        async with self._call_lock:
            if self._blocked:
                raise RuntimeError("an earlier call still hangs")
            try:
                session = await self._get_session()
                return await self.thread.call_user_code(_call_session, session, tool, arguments, timeout=seconds)
            except (CallTimeoutError, asyncio.CancelledError):
                self._blocked = not await self.thread.is_responsive()
                raise

    async def _get_session(self) -> ToolSession:
        if self._session is None:
            if self._open_future is None or (self._open_future.done() and self._session is None):
                begin: Any = self._open_session
                self._open_future = asyncio.ensure_future(self.thread.call_user_code(begin, timeout=None))
            try:
                await asyncio.wait_for(asyncio.shield(self._open_future), OPEN_SECONDS)
            except TimeoutError as error:
                raise RuntimeError(f"its tools could not be opened within {OPEN_SECONDS:g} s") from error
        assert self._session is not None
        return self._session

    async def _open_session(self) -> None:
        """Open the session on its own thread; after the episode's end, close it at once."""
        session = self.source.open(copy_task(self.task), self.seed)
        with self._close_lock:
            late = self._closed
            self._session = None if late else session
        if late:
            await session.end()

    async def close(self) -> None:
        """End the session, or mark an opening session for closing."""
        if not self.owns_thread:
            return
        with self._close_lock:
            self._closed = True
        pending = self._open_future is not None and not self._open_future.done()
        if self._session is not None and not self._blocked:
            await self._end_session(self._session)
        await self.threads.release(self.thread, failed=self._blocked or pending)

    async def _end_session(self, session: ToolSession) -> None:
        end: Any = session.end
        try:
            await self.thread.call_user_code(end, timeout=CLOSE_SECONDS)
        except CallTimeoutError:
            self._blocked = True
        except UserCodeError:
            return  # does not change the episode's outcome


async def _call_session(session: ToolSession, tool: str, arguments: Mapping[str, object]) -> str:
    return replace_surrogates(str(await session.call(tool, arguments)))


class ToolExecutor:
    """Tool executor for one episode.

    A stateful source has one session per episode, opened at its first use. A stateless source opens one session per
    call.
    """

    def __init__(
        self,
        sources: Mapping[str, ToolSource],
        threads: LoopThreadPool,
        engine: Sampler,
        task: Task,
        seed: int,
        injections: Sequence[PromptInjection] = (),
    ) -> None:
        self.sources, self.threads, self.engine = sources, threads, engine
        self.task, self.seed, self.injections = task, seed, injections
        self._sessions: dict[str, OpenToolSession] = {}
        self._call_count = 0  # number of calls so far
        self._replayed: dict[str, int] = {}  # by source: index of the last recorded call that was replayed

    def add_environment(self, session: Session, thread: LoopThread) -> None:
        """Add the tools of the environment's session; their calls alternate with its steps on one thread."""
        for name, source in self.sources.items():
            joined = source.bind_session(session)
            if joined is not None:
                self._sessions[name] = OpenToolSession(source, self.threads, self.task, self.seed, thread, joined)

    async def execute(
        self, limits: ToolUse, calls: Sequence[ToolCall], clip: Callable[[str], str] = str
    ) -> list[ToolCall]:
        """Execute the calls concurrently and return them with their outputs.

        Calls to a stateful source run one at a time. Calls beyond ``limits.calls`` become errors.

        Args:
            clip: truncates an output to the length shown to the agent. Injected texts follow the truncated output.
        """
        with self.engine.external_wait():
            executed = list(await asyncio.gather(*(self._execute_call(limits, call) for call in calls[: limits.calls])))
        executed = [replace(call, output=clip(call.output)) for call in executed]
        return inject_outputs(executed, self.injections) + [
            _failed_call(call, f"too many calls in one turn: {limits.calls} were made")
            for call in calls[len(executed) :]
        ]

    async def replay(self, limits: ToolUse, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Execute recorded calls again for stateful sources; keep the outputs for stateless ones.

        Raises:
            EpisodeFailedError: agents used a source alternately, and the replay would change the order of calls.
        """
        again = [self._needs_replay(limits, call) for call in calls]
        requests = [replace(call, output="", error=False) for call, wanted in zip(calls, again, strict=True) if wanted]
        before = self._call_count
        executed = iter(await self.execute(limits, requests))
        self._call_count = max([before, *(call.index for call in calls)])  # new calls follow the recorded ones
        return [next(executed) if wanted else call for call, wanted in zip(calls, again, strict=True)]

    def _needs_replay(self, limits: ToolUse, call: ToolCall) -> bool:
        """Return true if a recorded call needs another execution.

        Raises:
            EpisodeFailedError: a later recorded call to the same source was already replayed.
        """
        source = limits.sources.get(call.name)
        if source is None or not self.sources[source].stateful:
            return False
        if call.index < self._replayed.get(source, 0):
            raise EpisodeFailedError(
                "failed", f"agents used {source!r} in turns, which cannot be played again in order"
            )
        self._replayed[source] = call.index
        return True

    async def close(self) -> None:
        """Close all sessions."""
        await asyncio.gather(*(opened.close() for opened in self._sessions.values()))
        self._sessions.clear()

    async def _execute_call(self, limits: ToolUse, call: ToolCall) -> ToolCall:
        self._call_count += 1
        call = replace(call, index=self._call_count)
        if not call.name:
            return call
        name = limits.sources.get(call.name)
        if name is None:
            return _failed_call(call, f"no tool is called {call.name!r}{did_you_mean(call.name, limits.sources)}")
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError) as error:
            return _failed_call(call, f"the arguments are no valid JSON: {error}")
        if not isinstance(arguments, dict):
            return _failed_call(call, "the arguments must be a JSON object")
        async with self.threads.slots(name, self.sources[name].max_concurrency):
            opened = self._open_session(name)
            try:
                return await _call_tool(opened, call, arguments, limits.seconds)
            finally:
                if name not in self._sessions:
                    await opened.close()

    def _open_session(self, name: str) -> OpenToolSession:
        if name in self._sessions:
            return self._sessions[name]
        try:
            opened = OpenToolSession(self.sources[name], self.threads, self.task, self.seed)
        except ValueError as error:
            raise EpisodeFailedError("failed", str(error)) from error
        if self.sources[name].stateful:
            self._sessions[name] = opened
        return opened


async def _call_tool(
    opened: OpenToolSession, call: ToolCall, arguments: Mapping[str, object], seconds: float
) -> ToolCall:
    start_time = time.perf_counter()
    try:
        output = await opened.call(call.name, arguments, seconds)
    except CallTimeoutError:
        reason = f"{call.name} took over {seconds:g} s"
    except UserCodeError as error:
        reason = error.message
    except RuntimeError as error:
        reason = format_error(error)
    else:
        return replace(call, output=output, seconds=time.perf_counter() - start_time)
    return replace(_failed_call(call, reason), seconds=time.perf_counter() - start_time)


def _failed_call(call: ToolCall, reason: str) -> ToolCall:
    return replace(call, output=replace_surrogates(reason), error=True)
