"""Team as a Model Context Protocol tool, over standard input and output or at ``/mcp``."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from marft.common.version import __version__
from marft_serve.gateway.errors import RequestError
from marft_serve.serving.app import App, OriginMiddleware
from marft_serve.serving.options import MCP_PATH, TOOL_NAME
from marft_serve.serving.rpc_checks import read_call, replay_body


class TeamServer(MCPServer[Any]):
    """MCP server with a clear error for a call without a task."""

    async def call_tool(self, name: str, arguments: dict[str, object], *context: Any, **named: Any) -> Any:
        """Call a tool.

        Raises:
            ToolError: the tool does not exist, or the call has no task.
        """
        task = arguments.get("task")
        if name == TOOL_NAME and not (isinstance(task, str) and task.strip()):
            raise ToolError(f'{TOOL_NAME} needs a task in words: {{"task": "…"}}')
        return await super().call_tool(name, arguments, *context, **named)

    async def get_prompt(self, name: str, *arguments: Any, **named: Any) -> Any:  # noqa: ARG002
        """Reject the request: a team has no prompts.

        Raises:
            MCPError: always; a different error would be logged as a server fault.
        """
        raise MCPError(INVALID_PARAMS, f"there is no such prompt: a team has one tool, {TOOL_NAME}")


def build_team_server(app: App) -> MCPServer[object]:
    """Return a server with one tool, from a task to the team's answer; calls share the request queue."""
    name = app.handler.team_names[0]
    null_handler = logging.NullHandler()
    # with an existing handler, the library does not change the root logger's level and handlers
    logging.root.addHandler(null_handler)
    try:
        server = TeamServer(name, version=__version__)
    finally:
        logging.root.removeHandler(null_handler)
    logging.getLogger("mcp").setLevel(logging.ERROR)

    async def ask_team(task: str) -> str:
        try:
            _, result = await app.ask_team(task)
            return str(result.replies[0].message["content"])
        except RequestError as error:
            raise ToolError(str(error)) from error

    roles = ", ".join(app.handler.roles)
    server.add_tool(
        ask_team, name=TOOL_NAME, description=f"Give a task to the team {name} ({roles}) and get its answer."
    )
    return server


def combine_apps(app: App, server: MCPServer[object]) -> ASGIApp:
    """Combine an app with an MCP server at ``/mcp``, under the same token."""
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # the app checks access itself
    inner = server.streamable_http_app(
        streamable_http_path=MCP_PATH, stateless_http=True, json_response=True, transport_security=security
    )
    app.other_paths.append(MCP_PATH)
    main = Starlette(
        routes=app.asgi.routes, exception_handlers=app.asgi.exception_handlers, lifespan=_build_lifespan(server)
    )
    main.router.redirect_slashes = False

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        """Route a request to the app or to the MCP server."""
        if scope["type"] != "http" or scope["path"] != MCP_PATH:
            await main(scope, receive, send)
            return
        body = await read_call(app, Request(scope, receive), 400)
        if isinstance(body, Response):
            await body(scope, receive, send)
        else:
            await inner(scope, replay_body(body, receive), send)

    return OriginMiddleware(route, app)


def _build_lifespan(server: MCPServer[object]) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        """Run the MCP server's session manager."""
        async with server.session_manager.run():
            yield

    return lifespan
