"""A connection to an MCP server: one client of the official package, on a thread of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from marft.game.hosting import HostThread
from marft.types import Tool

if TYPE_CHECKING:
    from httpx2 import AsyncClient
    from mcp import Client
    from mcp_types import CallToolResult

LEASH = Path(__file__).with_name("leash.py")
CLOSE_SECONDS = 15.0  # the client gives a server some time to end, then kills it


class ServerSettings(Protocol):
    """How a server is reached: it is started, or it has a url."""

    @property
    def command(self) -> tuple[str, ...]: ...
    @property
    def environment(self) -> tuple[str, ...]: ...
    @property
    def folder(self) -> str: ...
    @property
    def log(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def header_variables(self) -> Mapping[str, str]: ...
    @property
    def connect_seconds(self) -> float: ...


class Connection:
    """One client of one server, on a thread of its own. What was lost is connected again with the next call.

    Raises:
        ValueError: the server cannot be reached.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._thread = HostThread()
        self._client: Client | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._joining = asyncio.Lock()
        try:
            self._wait(self._join(), settings.connect_seconds)
        except Exception as error:
            self.close()
            raise ValueError(f"cannot connect to {self._where()}: {_reason(error)}") from error

    def tools(self) -> list[Tool]:
        """What the server offers."""
        found: list[Tool] = self._wait(self._list(), self.settings.connect_seconds)
        return found

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Use a tool; from any event loop."""
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._call(tool, dict(arguments)), self._thread.loop)
        )

    def close(self) -> None:
        """Leave; a server that we started ends."""
        try:
            self._wait(self._part(), CLOSE_SECONDS)
        finally:
            self._thread.stop()

    def _wait(self, coroutine: Any, seconds: float) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._thread.loop).result(seconds)

    def _where(self) -> str:
        return self.settings.url or " ".join(self.settings.command)

    async def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        client = await self._join()
        try:
            return text_of(await client.call_tool(tool, arguments))
        except MCPError as error:
            if error.code == CONNECTION_CLOSED and client is self._client:
                await self._part()
            raise

    async def _list(self) -> list[Tool]:
        client, found, cursor = await self._join(), list[Tool](), None
        while True:
            page = await client.list_tools(cursor=cursor)
            found += [Tool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
            cursor = page.next_cursor
            if not cursor:
                return found

    async def _join(self) -> Client:
        async with self._joining:
            if self._client is None:
                joined = asyncio.get_running_loop().create_future()
                self._leave = asyncio.Event()
                self._keeper = asyncio.create_task(self._keep(joined))
                self._client = await joined
            return self._client

    async def _part(self) -> None:
        self._leave.set()
        keeper, self._keeper, self._client = self._keeper, None, None
        if keeper is not None:
            await asyncio.wait([keeper])

    async def _keep(self, joined: asyncio.Future[Client]) -> None:
        """The task in which the client begins and ends."""
        try:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(await self._made(stack))
                joined.set_result(client)
                await self._leave.wait()
        except Exception as error:  # noqa: BLE001  whoever waits must hear of it; after that the connection is over
            if not joined.done():
                joined.set_exception(error)

    async def _made(self, stack: AsyncExitStack) -> Client:
        from mcp import Client, StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        settings = self.settings
        if settings.url:
            http = await stack.enter_async_context(_http_client(settings))
            return Client(streamable_http_client(settings.url, http_client=http))
        started = StdioServerParameters(
            command=sys.executable,
            args=["-I", "-S", str(LEASH), str(os.getpid()), *settings.command],
            env={name: _variable(name) for name in settings.environment},
            cwd=settings.folder or None,
        )
        errors = stack.enter_context(open(settings.log or os.devnull, "a", encoding="utf-8"))  # noqa: PTH123, SIM115
        return Client(stdio_client(started, errlog=errors))


def text_of(result: CallToolResult) -> str:
    """What an agent reads of a result.

    Raises:
        RuntimeError: the tool says that it failed.
    """
    parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
    text = "\n".join(parts)
    if result.is_error:
        raise RuntimeError(text)
    return text


def _http_client(settings: ServerSettings) -> AsyncClient:
    from httpx2 import AsyncClient, Timeout

    headers = {name: _variable(variable) for name, variable in settings.header_variables.items()}
    return AsyncClient(headers=headers, timeout=Timeout(settings.connect_seconds, read=None))


def _variable(name: str) -> str:
    if name not in os.environ:
        raise ValueError(f"the environment variable {name} is not set")
    return os.environ[name]


def _reason(error: BaseException) -> str:
    """What is behind a group of errors, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error).splitlines()[0] if str(error) else type(error).__name__
