"""Connection to an MCP server: one client from the official package, on a thread of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from itertools import count
from typing import TYPE_CHECKING, Protocol

from marft.agents.loop_threads import LoopThread
from marft.agents.tools.mcp_results import format_result
from marft.agents.tools.server_traffic import MAX_MESSAGE_BYTES, ServerTraffic, check_tool_count, redirect_library_log
from marft.agents.tools.transports import bounded_client, standard_streams
from marft.common.processes import SUBREAPER
from marft.common.types import Tool
from marft.common.user_modules import subprocess_env
from marft.config.api_keys import mask_key, mask_values, read_api_key, secret_values

if TYPE_CHECKING:
    from httpx2 import AsyncClient
    from mcp import Client
    from mcp_types import CallToolResult

CLOSE_SECONDS = 15.0  # the client gives a server time to end, then kills it
PING_SECONDS = 5.0  # timeout for a server to respond to anything after a call that did not end


class ServerSettings(Protocol):
    """Settings for reaching a server: a command that starts it, or a URL."""

    @property
    def command(self) -> tuple[str, ...]: ...
    @property
    def env_variables(self) -> tuple[str, ...]: ...
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
    """Connection to one server, on a thread of its own; call :meth:`close` at the end.

    The first call connects. The next call connects again if the server was lost, or did not respond to a probe
    after a call without an end.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._thread = LoopThread()
        self._link: _Link | None = None
        self._links: list[_Link] = []  # all links not ended yet, including abandoned ones
        self._probe_task: asyncio.Task[None] | None = None
        self._close_future: Future[None] | None = None

    def tools(self) -> list[Tool]:
        """Return the server's tools.

        Raises:
            ValueError: the server cannot be reached.
        """
        try:
            return asyncio.run_coroutine_threadsafe(self._list_tools(), self._thread.loop).result()
        except Exception as error:  # noqa: BLE001  an external server can cause any error
            raise ValueError(f"cannot connect to {self.address}: {_first_cause(error, self.settings)}") from None

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Call a tool; works from any event loop.

        Raises:
            RuntimeError: the connection is closed, or the call failed.
        """
        if self._close_future is not None:
            raise RuntimeError("the connection is closed")
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._call(tool, dict(arguments)), self._thread.loop)
        )

    def end(self) -> Future[None]:
        """Start closing. Once the future is done, a started server and the thread have ended."""
        if self._close_future is None:
            self._close_future = asyncio.run_coroutine_threadsafe(self._close_links(), self._thread.loop)
            self._close_future.add_done_callback(lambda _: self._thread.stop())
        return self._close_future

    def close(self) -> None:
        """Close the connection and wait."""
        self.end().result()

    @property
    def address(self) -> str:
        """The server's URL, or its command."""
        return self.settings.url or " ".join(self.settings.command)

    async def _call(self, tool: str, arguments: dict[str, object]) -> str:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        link = await self._connect()
        client = await link.client()
        try:
            return result_text(await client.call_tool(tool, arguments), find_secrets(self.settings))
        except asyncio.CancelledError:
            if self._probe_task is None or self._probe_task.done():
                self._probe_task = asyncio.create_task(self._probe(link, client))
            raise
        except MCPError as error:
            if error.code == CONNECTION_CLOSED or link.limiter.fault:
                await self._drop_link(link)
            raise RuntimeError(link.explain_error(error)) from None

    async def _list_tools(self) -> list[Tool]:
        from mcp import MCPError

        link = await self._connect()
        client, tools, cursor = await link.client(), list[Tool](), None
        try:
            async with asyncio.timeout(self.settings.connect_seconds):
                for pages in count(1):
                    page = await client.list_tools(cursor=cursor)
                    tools += [Tool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools]
                    cursor = page.next_cursor
                    check_tool_count(len(tools), pages + bool(cursor))
                    if not cursor:
                        break
        except TimeoutError:
            raise ValueError(link.explain_error(_timeout_error(self.settings))) from None
        except MCPError as error:
            raise ValueError(link.explain_error(error)) from None
        return tools

    async def _connect(self) -> _Link:
        if self._probe_task is not None:
            await asyncio.shield(self._probe_task)
        if self._link is None or self._link.failed:
            self._link = _Link(self.settings)
            self._links = [*(link for link in self._links if not link.closed), self._link]
        return self._link

    async def _probe(self, link: _Link, client: Client) -> None:
        """Drop a server that does not respond to a probe."""
        try:
            async with asyncio.timeout(PING_SECONDS):
                await client.list_tools(cache_mode="refresh")
        except Exception:  # noqa: BLE001  no response, for any reason
            await self._drop_link(link)

    async def _drop_link(self, link: _Link) -> None:
        if link is self._link:
            self._link = None
        await link.disconnect()

    async def _close_links(self) -> None:
        if self._probe_task is not None:
            self._probe_task.cancel()
        await asyncio.gather(*(link.disconnect() for link in self._links))


class _Link:
    """One client, and the task that enters and exits it."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.limiter = ServerTraffic()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._close_event = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def failed(self) -> bool:
        """True if connecting failed."""
        return self._client.done() and self._client.exception() is not None

    @property
    def closed(self) -> bool:
        """True after the end of the task."""
        return self._task.done()

    async def client(self) -> Client:
        """Return the client once connected; a cancelled caller does not affect other callers.

        Raises:
            ValueError: the server did not respond in time.
        """
        return await asyncio.shield(self._client)

    def explain_error(self, error: BaseException) -> str:
        """Return an error in one line, with notes on invalid data from the server."""
        notes = _mask_headers(self.limiter.describe_faults(), self.settings)
        reason = _first_cause(error, self.settings)
        return notes if self.limiter.fault else "; ".join(part for part in (reason, notes) if part)

    async def disconnect(self) -> None:
        """Disconnect, or stop connecting; takes at most ``CLOSE_SECONDS``."""
        self._close_event.set()
        if not self._client.done():
            self._task.cancel()
        await asyncio.wait([self._task], timeout=CLOSE_SECONDS)

    async def _run(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout(self.settings.connect_seconds):
                        unopened = await _build_client(self.settings, stack, self.limiter)
                        client = await stack.enter_async_context(unopened)
                    client.session.validate_tool_result = _skip_validation  # type: ignore[method-assign]
                except TimeoutError:
                    raise _timeout_error(self.settings) from None
                self._client.set_result(client)
                await self._close_event.wait()
        except Exception as error:  # noqa: BLE001  passed on to all waiting callers
            self._fail(ValueError(self.explain_error(error)))
        finally:
            self._fail(RuntimeError("the connection is closed"))

    def _fail(self, error: Exception) -> None:
        if not self._client.done():
            self._client.set_exception(error)
            self._client.exception()  # marks the error as retrieved, even if no caller waits


async def _skip_validation(name: str, result: CallToolResult) -> None:
    """Skip the validation of a result against its tool's output schema.

    Agents read the result either way, and a pattern in an untrusted schema can make the search run forever.
    """


async def _build_client(settings: ServerSettings, stack: AsyncExitStack, limiter: ServerTraffic) -> Client:
    from mcp import Client
    from mcp.client.stdio import get_default_environment
    from mcp.client.streamable_http import streamable_http_client

    redirect_library_log()
    if settings.url:
        http = await stack.enter_async_context(_http_client(settings, limiter))
        return Client(streamable_http_client(settings.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES))
    command = [sys.executable, "-I", "-S", str(SUBREAPER), str(os.getpid()), *settings.command]
    variables = {name: _read_variable(name) for name in settings.env_variables}
    environment = {**get_default_environment(), **variables, **subprocess_env(settings.folder)}
    errors = stack.enter_context(open(settings.log or os.devnull, "a", encoding="utf-8"))  # noqa: PTH123, SIM115
    return Client(standard_streams(command, environment, settings.folder or None, errors, limiter))


def find_secrets(settings: ServerSettings) -> list[str]:
    """Return the confidential values that a server receives: header values, and variables with secret-like names."""
    headers = [os.environ.get(variable, "").strip() for variable in settings.header_variables.values()]
    return [*headers, *secret_values({name: os.environ.get(name, "") for name in settings.env_variables})]


def result_text(result: CallToolResult, secrets: Collection[str] = ()) -> str:
    """Return a result as the text that an agent reads, with echoed secrets masked.

    Raises:
        RuntimeError: the tool reports a failure.
    """
    text = mask_values(secrets, format_result(result))
    if result.is_error:
        raise RuntimeError(text)
    return text


def _http_client(settings: ServerSettings, limiter: ServerTraffic) -> AsyncClient:
    from httpx2 import Timeout

    headers = {name: read_api_key(variable) for name, variable in settings.header_variables.items()}
    return bounded_client(headers, Timeout(settings.connect_seconds, read=None), limiter)


def _read_variable(name: str) -> str:
    if name not in os.environ:
        raise ValueError(f"the environment variable {name} is not set")
    return os.environ[name]


def _timeout_error(settings: ServerSettings) -> ValueError:
    return ValueError(f"it did not answer in {settings.connect_seconds:g} s (connect_seconds)")


def _first_cause(error: BaseException, settings: ServerSettings) -> str:
    """Return the first cause in a group of errors, in one line, with header values masked."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return _mask_headers(str(error).splitlines()[0] if str(error) else type(error).__name__, settings)


def _mask_headers(text: str, settings: ServerSettings) -> str:
    for variable in settings.header_variables.values():
        text = mask_key(os.environ.get(variable, "").strip(), text)
    return text
