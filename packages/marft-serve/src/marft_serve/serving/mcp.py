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
from marft_serve.gateway.http import body_of
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.protocol.exchange import Asked
from marft_serve.gateway.refusals import RequestError
from marft_serve.serving.admission import BusyError
from marft_serve.serving.app import App, Guarded, OneRequest, headers_of
from marft_serve.serving.calls import refusal_of
from marft_serve.serving.measuring import NOBODY
from marft_serve.serving.offering import MCP_PATH, TOOL


class TeamServer(MCPServer[Any]):
    """MCP server with a clear error for a call without a task."""

    async def call_tool(self, name: str, arguments: dict[str, Any], *context: Any, **named: Any) -> Any:
        """Call a tool.

        Raises:
            ToolError: the tool does not exist, or the call has no task.
        """
        task = arguments.get("task")
        if name == TOOL and not (isinstance(task, str) and task.strip()):
            raise ToolError(f'{TOOL} needs a task in words: {{"task": "…"}}')
        return await super().call_tool(name, arguments, *context, **named)

    async def get_prompt(self, name: str, *arguments: Any, **named: Any) -> Any:  # noqa: ARG002
        """Reject the request: a team has no prompts.

        Raises:
            MCPError: always; a different error would be logged as a server fault.
        """
        raise MCPError(INVALID_PARAMS, f"there is no such prompt: a team has one tool, {TOOL}")


def team_server(app: App) -> MCPServer[Any]:
    """Return a server with one tool, from a task to the team's answer; calls share the request queue."""
    name = app.asking.teams[0]
    nothing = logging.NullHandler()
    # with an existing handler, the library does not change the root logger's level and handlers
    logging.root.addHandler(nothing)
    try:
        server = TeamServer(name, version=__version__)
    finally:
        logging.root.removeHandler(nothing)
    logging.getLogger("mcp").setLevel(logging.ERROR)

    async def ask_team(task: str) -> str:
        asked = Asked(Chat(messages=({"role": "user", "content": task},)))
        try:
            one = OneRequest(app, ChatCompletions(), asked, name, app.asking.next_name())
            one.begin(app.gate.enter())
            return str((await one.answer()).replies[0].message["content"])
        except RequestError as error:
            if isinstance(error, BusyError):  # other errors are counted by the request itself
                app.measured.requests.labels(name, error.status).inc()
            raise ToolError(str(error)) from error

    roles = ", ".join(app.asking.roles)
    server.add_tool(ask_team, name=TOOL, description=f"Give a task to the team {name} ({roles}) and get its answer.")
    return server


def beside(app: App, server: MCPServer[Any]) -> ASGIApp:
    """Combine an app with an MCP server at ``/mcp``, under the same token."""
    anywhere = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # the app checks access itself
    inner = server.streamable_http_app(
        streamable_http_path=MCP_PATH, stateless_http=True, json_response=True, transport_security=anywhere
    )
    app.beside.append(MCP_PATH)
    main = Starlette(routes=app.asgi.routes, exception_handlers=app.asgi.exception_handlers, lifespan=_running(server))
    main.router.redirect_slashes = False

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        """Route a request to the app or to the MCP server."""
        if scope["type"] != "http" or scope["path"] != MCP_PATH:
            await main(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            app.check(request)
            body = await body_of(request, app.bounds)
        except RequestError as error:
            app.measured.requests.labels(NOBODY, error.status).inc()
            await JSONResponse(ChatCompletions().error(error), error.status, headers_of(error))(scope, receive, send)
            return
        if refusal := await refusal_of(body):
            await JSONResponse(refusal, 400)(scope, receive, send)
            return
        await inner(scope, _replayed(body, receive), send)

    return Guarded(both, app)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that starts with a body already read."""
    parts = [body]

    async def received() -> Message:
        """Return the body first, then further messages."""
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return received


def _running(server: MCPServer[Any]) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        """Run the MCP server's session manager."""
        async with server.session_manager.run():
            yield

    return lifespan
