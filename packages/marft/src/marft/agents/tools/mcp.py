"""Tools from MCP servers, over stdio or HTTP: the settings, the connection to a server, and the tool sources."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.loop_threads import LoopThread
from marft.agents.tools.transports import (
    MAX_MESSAGE_BYTES,
    MAX_NAME_CHARACTERS,
    ServerTraffic,
    bounded_client,
    check_tool_count,
    check_tool_sizes,
    redirect_library_log,
    standard_streams,
)
from marft.common.errors import UserError
from marft.common.packages import install_command
from marft.common.processes import SUBREAPER
from marft.common.texts import parse_json_text, single_line
from marft.common.types import Task, Tool
from marft.common.user_modules import subprocess_env
from marft.config.agents import Strings
from marft.config.endpoint import VARIABLE_NAME, check_url
from marft.config.interfaces.tools import StatelessSource, ToolProvider, ToolSession, ToolSource
from marft.config.paths import ExpandUser
from marft.config.secrets import mask_key, mask_values, read_api_key, secret_values
from marft.config.settings import Positive

if TYPE_CHECKING:
    from httpx2 import AsyncClient
    from mcp import Client
    from mcp_types import CallToolResult, ContentBlock

HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, 5.1
MAX_SHOWN_NAMES = 20  # maximum tool names in an error message
CLOSE_SECONDS = 15.0  # the client gives a server time to end, then kills it
PING_SECONDS = 5.0  # timeout for a server to respond to anything after a call that did not end


class MCP(ToolProvider):
    """MCP server, either started (``command``) or already running (``url``).

    All episodes share one connection by default. With ``per_episode``, each episode has a connection of its own,
    and with ``command`` a server of its own, for tools that keep state.

    ::

        [tools.files]
        name = "mcp"
        command = ["python", "server.py"]

        [tools.search]
        name = "mcp"
        url = "http://127.0.0.1:8000/mcp"
        header_variables = { Authorization = "SEARCH_KEY" }     # a header, and the variable that holds it
    """

    command: Strings = Field(default=(), description="program and arguments that start the server")
    env_variables: Strings = Field(default=(), description="names of MARFT's environment variables for the server")
    folder: Annotated[str, ExpandUser] = Field(default="", description="working folder of a started server")
    log_file: Annotated[str, ExpandUser] = Field(
        default="", description='file for the server\'s standard error; "": discard'
    )
    url: str = Field(default="", description="URL of a running server")
    header_variables: dict[str, str] = Field(
        default={}, description="header name → name of the environment variable with the header's whole value"
    )
    allowed_tools: Strings = Field(default=(), description="names of the tools to offer; []: every tool")
    per_episode: bool = Field(default=False, description="one server or connection per episode, for servers with state")
    connect_seconds: Positive = Field(default=30.0, description="timeout for the server's first response, in seconds")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return check_url(url, "header_variables") if url else url

    @field_validator("env_variables")
    @classmethod
    def _check_variables(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not all(map(VARIABLE_NAME.fullmatch, names)):
            raise PydanticCustomError(
                "variable", 'holds names of environment variables, as in ["MY_KEY"], never values'
            )
        return names

    @field_validator("header_variables")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name in headers:
            if not HEADER.fullmatch(name):
                raise PydanticCustomError("header", "no header can be called {name}", {"name": repr(name)})
        if not all(map(VARIABLE_NAME.fullmatch, headers.values())):
            raise PydanticCustomError(
                "variable",
                'names for each header the environment variable that holds it, such as { Authorization = "MY_KEY" }, '
                "never its value",
            )
        return headers

    @model_validator(mode="after")
    def _check_transport(self) -> MCP:
        if bool(self.command) == bool(self.url):
            raise UserError("needs either a command that starts the server, or its url")
        way = "url" if self.url else "command"
        unused_keys = ("env_variables", "folder", "log_file") if self.url else ("header_variables",)
        idle = [key for key in unused_keys if getattr(self, key)]
        if idle:
            raise UserError(f"{', '.join(idle)} would do nothing for a server with a {way}; remove it")
        return self

    def connect(self) -> ToolSource:
        """Return the tool source for the run.

        Raises:
            UserError: the server cannot be started or reached, or lacks a requested tool.
        """
        if self.command and shutil.which(self.command[0]) is None:
            raise UserError(f"there is no program {self.command[0]!r}")
        if find_spec("mcp") is None:
            raise UserError(f"MCP needs a package that is not installed: {install_command('mcp')}")
        connection = Connection(self)
        try:
            chosen = self._select_tools(connection.tools())
            check_tool_sizes(chosen, connection.address)
        except BaseException:  # including Ctrl-C
            connection.close()
            raise
        if not self.per_episode:
            return SharedServer(connection, chosen)
        connection.close()
        return EpisodeServers(self, chosen)

    def _select_tools(self, available: Sequence[Tool]) -> list[Tool]:
        names = [tool.name for tool in available]
        missing = sorted(set(self.allowed_tools) - set(names))
        if missing:
            shown_names = ", ".join(single_line(name[:MAX_NAME_CHARACTERS]) for name in names[:MAX_SHOWN_NAMES])
            more = f" and {len(names) - MAX_SHOWN_NAMES:,} more" if len(names) > MAX_SHOWN_NAMES else ""
            raise UserError(f"the server has no tool {', '.join(missing)}; it has {shown_names}{more}")
        return [tool for tool in available if not self.allowed_tools or tool.name in self.allowed_tools]


class SharedServer(StatelessSource):
    """Tool source with one connection for the whole run."""

    def __init__(self, connection: Connection, tools: Sequence[Tool]) -> None:
        self.connection, self._tools = connection, tools

    @property
    def tools(self) -> Sequence[Tool]:
        """Tools that the server lists."""
        return self._tools

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Call a tool on the server and return its text."""
        return await self.connection.call(tool, arguments)

    def close(self) -> None:
        """Close the connection, and end the server if MARFT started it."""
        self.connection.close()


class EpisodeServers(ToolSource):
    """Tool source with one connection per episode."""

    def __init__(self, settings: MCP, tools: Sequence[Tool]) -> None:
        self.settings, self._tools = settings, tools
        self._connections: set[Connection] = set()

    @property
    def tools(self) -> Sequence[Tool]:
        """Tools that the server listed at the start."""
        return self._tools

    def open(self, task: Task, seed: int) -> ToolSession:  # noqa: ARG002
        """Open a connection for one episode."""
        connection = Connection(self.settings)
        self._connections.add(connection)
        return EpisodeServer(connection, self._connections)

    def close(self) -> None:
        """Close the running episodes' connections."""
        for ending in [connection.end() for connection in list(self._connections)]:
            ending.result()


class EpisodeServer:
    """Connection for one episode.

    Args:
        connections: connections of all running episodes.
    """

    def __init__(self, connection: Connection, connections: set[Connection]) -> None:
        self._connection, self._connections = connection, connections

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Call a tool on the episode's server and return its text."""
        return await self._connection.call(tool, arguments)

    async def end(self) -> None:
        """Close the connection; closing continues even if the caller stops waiting."""
        ending = self._connection.end()
        ending.add_done_callback(lambda _: self._connections.discard(self._connection))
        await asyncio.shield(asyncio.wrap_future(ending))


class Connection:
    """Connection to one server, on a thread of its own; call :meth:`close` at the end.

    The first call connects. The next call connects again if the server was lost, or did not respond to a probe
    after a call without an end.
    """

    def __init__(self, settings: MCP) -> None:
        self.settings = settings
        self._thread = LoopThread()
        self._link: _Link | None = None
        self._links: list[_Link] = []  # all links not ended yet, including abandoned ones
        self._probe_task: asyncio.Task[None] | None = None
        self._close_future: Future[None] | None = None

    def tools(self) -> list[Tool]:
        """Return the server's tools.

        Raises:
            UserError: the server cannot be reached.
        """
        try:
            return asyncio.run_coroutine_threadsafe(self._list_tools(), self._thread.loop).result()
        except Exception as error:  # noqa: BLE001  an external server can cause any error
            raise UserError(f"cannot connect to {self.address}: {_first_cause(error, self.settings)}") from None

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
            raise UserError(link.explain_error(_timeout_error(self.settings))) from None
        except MCPError as error:
            raise UserError(link.explain_error(error)) from None
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

    def __init__(self, settings: MCP) -> None:
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
            UserError: the server did not respond in time.
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


async def _build_client(settings: MCP, stack: AsyncExitStack, limiter: ServerTraffic) -> Client:
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
    errors = stack.enter_context(open(settings.log_file or os.devnull, "a", encoding="utf-8"))  # noqa: PTH123, SIM115
    return Client(standard_streams(command, environment, settings.folder or None, errors, limiter))


def find_secrets(settings: MCP) -> list[str]:
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


def _http_client(settings: MCP, limiter: ServerTraffic) -> AsyncClient:
    from httpx2 import Timeout

    headers = {name: read_api_key(variable) for name, variable in settings.header_variables.items()}
    return bounded_client(headers, Timeout(settings.connect_seconds, read=None), limiter)


def _read_variable(name: str) -> str:
    if name not in os.environ:
        raise UserError(f"the environment variable {name} is not set")
    return os.environ[name]


def _timeout_error(settings: MCP) -> ValueError:
    return UserError(f"it did not answer in {settings.connect_seconds:g} s (connect_seconds)")


def _first_cause(error: BaseException, settings: MCP) -> str:
    """Return the first cause in a group of errors, in one line, with header values masked."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return _mask_headers(str(error).splitlines()[0] if str(error) else type(error).__name__, settings)


def _mask_headers(text: str, settings: MCP) -> str:
    for variable in settings.header_variables.values():
        text = mask_key(os.environ.get(variable, "").strip(), text)
    return text


def format_result(result: CallToolResult) -> str:
    """Return a result as text: its content in order, then structured content that no text repeats.

    Images, audio and binary resources are described by name, address, type and size.
    """
    parts = [_format_block(block) for block in result.content]
    if result.structured_content is not None and not _is_repeated(result.structured_content, result.content):
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts)


def _format_block(block: ContentBlock) -> str:
    if block.type == "text":
        return block.text
    if block.type == "resource_link":
        size = None if block.size is None else f"{block.size:,} bytes"
        details = [part for part in (block.mime_type, size) if part]
        named = block.title or block.name
        return f"[resource {named!r} at {_join_parts([block.uri, *details])}]{_format_description(block.description)}"
    if block.type == "resource":
        resource = block.resource
        text = getattr(resource, "text", None)
        if isinstance(text, str):
            return f"[resource {_join_parts([resource.uri, resource.mime_type])}]\n{text}"
        blob = str(getattr(resource, "blob", ""))
        parts = _join_parts([resource.uri, resource.mime_type, _format_size(blob)])
        return f"[resource {parts}; it is binary and not shown]"
    return f"[{block.type} {_join_parts([block.mime_type, _format_size(block.data)])}; it is not shown]"


def _join_parts(parts: Sequence[str | None]) -> str:
    return ", ".join(str(part) for part in parts if part)


def _format_description(description: str | None) -> str:
    return f" {description}" if description else ""


def _format_size(data: str) -> str:
    """Return the size of base64-encoded data.

    >>> _format_size("aGVsbG8=")
    '5 bytes'
    """
    return f"{len(data) * 3 // 4 - data[-2:].count('='):,} bytes"


def _is_repeated(structured: object, content: Sequence[ContentBlock]) -> bool:
    """Return true if the text repeats the structured content, as the protocol recommends.

    Servers wrap a result that is not an object: ``{"result": 3}`` beside the text ``3``, or beside one text per
    item.
    """
    texts = [block.text for block in content if block.type == "text"]
    wrapped = isinstance(structured, dict) and list(structured) == ["result"]
    structured_forms = [structured, structured["result"]] if wrapped and isinstance(structured, dict) else [structured]
    parsed = [parse_json_text(text) for text in texts]
    text_forms = [parsed, texts, *parsed, *texts, "\n".join(texts)]
    return any(
        structured_form == text_form and type(structured_form) is type(text_form)
        for structured_form in structured_forms
        for text_form in text_forms
    )
