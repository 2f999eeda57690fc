"""Tool session during an episode."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from marft.agents.loop_threads import LoopThread, LoopThreadPool, OverdueError, RaisedError
from marft.agents.tasks import own_copy
from marft.agents.tool_sources import ToolSession, ToolSource
from marft.common.texts import storable
from marft.common.types import Task

OPEN_SECONDS = 60.0
CLOSE_SECONDS = 5.0


class OpenTools:
    """Tool session and its thread, either its own or the environment's; calls run one at a time.

    Raises:
        ValueError: the operating system allows no more threads.
    """

    def __init__(
        self, source: ToolSource, threads: LoopThreadPool, task: Task, seed: int,
        thread: LoopThread | None = None, session: ToolSession | None = None,
    ) -> None:  # fmt: skip
        self.source, self.threads, self.task, self.seed = source, threads, task, seed
        self.thread = thread or threads.acquire()
        self.own = thread is None
        self._session = session
        self._opening: asyncio.Future[None] | None = None
        self._turn = asyncio.Lock()
        self._deciding = threading.Lock()  # decides which side ends a session that opens while the episode ends
        self._over = False
        self._hangs = False

    async def call(self, tool: str, arguments: Mapping[str, object], seconds: float) -> str:
        """Call a tool; the timeout excludes the wait for earlier calls and for opening the session.

        Args:
            seconds: timeout of the call.

        Raises:
            OverdueError: the call exceeded its timeout.
            RaisedError: the tool raised an error.
            RuntimeError: an earlier call never ended, or the tools could not be opened within ``OPEN_SECONDS``.
        """
        async with self._turn:
            if self._hangs:
                raise RuntimeError("an earlier call still hangs")
            try:
                session = await self._opened()
                return await self.thread.call_theirs(_answer, session, tool, arguments, timeout=seconds)
            except (OverdueError, asyncio.CancelledError):
                self._hangs = not await self.thread.responsive()
                raise

    async def _opened(self) -> ToolSession:
        if self._session is None:
            if self._opening is None or (self._opening.done() and self._session is None):
                begin: Any = self._open
                self._opening = asyncio.ensure_future(self.thread.call_theirs(begin, timeout=None))
            try:
                await asyncio.wait_for(asyncio.shield(self._opening), OPEN_SECONDS)
            except TimeoutError as error:
                raise RuntimeError(f"its tools could not be opened within {OPEN_SECONDS:g} s") from error
        assert self._session is not None
        return self._session

    async def _open(self) -> None:
        """Open the session on its own thread; after the episode's end, close it at once."""
        session = self.source.open(own_copy(self.task), self.seed)
        with self._deciding:
            late = self._over
            self._session = None if late else session
        if late:
            await session.end()

    async def close(self) -> None:
        """End the session, or mark an opening session for closing."""
        if not self.own:
            return
        with self._deciding:
            self._over = True
        pending = self._opening is not None and not self._opening.done()
        if self._session is not None and not self._hangs:
            await self._end(self._session)
        await self.threads.release(self.thread, suspect=self._hangs or pending)

    async def _end(self, session: ToolSession) -> None:
        end: Any = session.end
        try:
            await self.thread.call_theirs(end, timeout=CLOSE_SECONDS)
        except OverdueError:
            self._hangs = True
        except RaisedError:
            return  # does not change the episode's outcome


async def _answer(session: ToolSession, tool: str, arguments: Mapping[str, object]) -> str:
    return storable(str(await session.call(tool, arguments)))
