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
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marft.agents.chat import Chat
from marft.common.version import __version__
from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.http import read_body
from marft_serve.gateway.protocol.base import ParsedRequest
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.serving.admission import BusyError
from marft_serve.serving.app import App, OriginMiddleware, ServedRequest, get_error_headers
from marft_serve.serving.metrics import UNKNOWN_MODEL
from marft_serve.serving.options import MCP_PATH, TOOL_NAME
from marft_serve.serving.rpc_checks import find_body_error


class TeamServer(MCPServer[Any]):
    """MCP server with a clear error for a call without a task."""

    async def call_tool(self, name: str, arguments: dict[str, Any], *context: Any, **named: Any) -> Any:
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


def build_team_server(app: App) -> MCPServer[Any]:
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
        parsed_request = ParsedRequest(Chat(messages=({"role": "user", "content": task},)))
        try:
            served_request = ServedRequest(app, ChatCompletions(), parsed_request, name, app.handler.next_request_id())
            served_request.start(app.admission.enter())
            return str((await served_request.wait_for_answer()).replies[0].message["content"])
        except RequestError as error:
            if isinstance(error, BusyError):  # other errors are counted by the request itself
                app.metrics.requests.labels(name, error.status).inc()
            raise ToolError(str(error)) from error

    roles = ", ".join(app.handler.roles)
    server.add_tool(
        ask_team, name=TOOL_NAME, description=f"Give a task to the team {name} ({roles}) and get its answer."
    )
    return server


def combine_apps(app: App, server: MCPServer[Any]) -> ASGIApp:
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
        request = Request(scope, receive)
        try:
            app.check_token(request)
            body = await read_body(request, app.body_limits)
        except RequestError as error:
            app.metrics.requests.labels(UNKNOWN_MODEL, error.status).inc()
            await JSONResponse(ChatCompletions().build_error(error), error.status, get_error_headers(error))(
                scope, receive, send
            )
            return
        if rpc_error := await find_body_error(body):
            await JSONResponse(rpc_error, 400)(scope, receive, send)
            return
        await inner(scope, _replay_body(body, receive), send)

    return OriginMiddleware(route, app)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that starts with a body already read."""
    parts = [body]

    async def receive_body() -> Message:
        """Return the body first, then further messages."""
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return receive_body


def _build_lifespan(server: MCPServer[Any]) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        """Run the MCP server's session manager."""
        async with server.session_manager.run():
            yield

    return lifespan
