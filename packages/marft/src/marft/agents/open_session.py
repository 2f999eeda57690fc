"""Tool session during an episode."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from marft.agents.loop_threads import CallTimeoutError, LoopThread, LoopThreadPool, UserCodeError
from marft.agents.task_copies import copy_task
from marft.agents.tool_sources import ToolSession, ToolSource
from marft.common.texts import replace_surrogates
from marft.common.types import Task

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
            OverdueError: the call exceeded its timeout.
            RaisedError: the tool raised an error.
            RuntimeError: an earlier call never ended, or the tools could not be opened within ``OPEN_SECONDS``.
        """
        async with self._call_lock:
            if self._blocked:
                raise RuntimeError("an earlier call still hangs")
            try:
                session = await self._get_session()
                return await self.thread.call_user_code(_call_tool, session, tool, arguments, timeout=seconds)
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


async def _call_tool(session: ToolSession, tool: str, arguments: Mapping[str, object]) -> str:
    return replace_surrogates(str(await session.call(tool, arguments)))
