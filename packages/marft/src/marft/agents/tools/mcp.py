"""Tools from MCP servers, over stdio or HTTP."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated

from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.tool_sources import StatelessSource, ToolSession, ToolSource
from marft.agents.tools.connection import Connection
from marft.agents.tools.server_traffic import MAX_NAME_CHARACTERS, check_tool_sizes
from marft.common.packages import install_command
from marft.common.texts import single_line
from marft.common.types import Task, Tool
from marft.config.agents import Strings
from marft.config.endpoint import VARIABLE_NAME, check_url
from marft.config.paths import ExpandUser
from marft.config.plugins import Plugin
from marft.config.settings import Positive

HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, 5.1
MAX_SHOWN_NAMES = 20  # maximum tool names in an error message


class MCP(Plugin):
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

    command: Strings = ()  # program and arguments that start the server
    env_variables: Strings = ()  # names of our environment variables that the server may see
    folder: Annotated[str, ExpandUser] = ""  # working folder of a started server
    log: Annotated[str, ExpandUser] = ""  # file for the server's standard error; "" discards it
    url: str = ""  # URL of a running server
    header_variables: dict[str, str] = {}  # header name → name of the environment variable that holds its whole value
    only: Strings = ()  # names of the tools to offer; empty offers all
    per_episode: bool = False  # one server or connection for each episode, for servers that keep state
    connect_seconds: Positive = 30.0  # timeout for the server's first response, in seconds

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
            raise ValueError("needs either a command that starts the server, or its url")
        way = "url" if self.url else "command"
        unused_keys = ("env_variables", "folder", "log") if self.url else ("header_variables",)
        idle = [key for key in unused_keys if getattr(self, key)]
        if idle:
            raise ValueError(f"{', '.join(idle)} would do nothing for a server with a {way}; remove it")
        return self

    def connect(self) -> ToolSource:
        """Return the tool source for the run.

        Raises:
            ValueError: the server cannot be started or reached, or lacks a requested tool.
        """
        if self.command and shutil.which(self.command[0]) is None:
            raise ValueError(f"there is no program {self.command[0]!r}")
        if find_spec("mcp") is None:
            raise ValueError(f"MCP needs a package that is not installed: {install_command('mcp')}")
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
        missing = sorted(set(self.only) - set(names))
        if missing:
            shown_names = ", ".join(single_line(name[:MAX_NAME_CHARACTERS]) for name in names[:MAX_SHOWN_NAMES])
            more = f" and {len(names) - MAX_SHOWN_NAMES:,} more" if len(names) > MAX_SHOWN_NAMES else ""
            raise ValueError(f"the server has no tool {', '.join(missing)}; it has {shown_names}{more}")
        return [tool for tool in available if not self.only or tool.name in self.only]


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
