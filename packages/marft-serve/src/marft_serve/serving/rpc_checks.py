"""Calls of A2A and MCP, in JSON-RPC: token, and bodies within the limits of their libraries."""

from __future__ import annotations

import json

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive

from marft.inference.call_values import exceeds_depth
from marft_serve.gateway.errors import RequestError, invalid_error
from marft_serve.gateway.http import read_body, run_if_large
from marft_serve.gateway.protocol.parsing import check_size, parse_json
from marft_serve.serving.app import App

MAX_DEPTH = 32  # nesting levels of tables and lists
MAX_CONTAINERS = 1024  # per call, tables and lists; A2A's library parses them slowly on the server's event loop
MAX_VALUES = 4096
PARSE_ERROR = -32700  # JSON-RPC error code for an unreadable body


async def read_call(app: App, request: Request, invalid_status: int) -> bytes | Response:
    """Check a call's token and body; return the body, or the error response.

    Args:
        app: the server's app.
        request: the request.
        invalid_status: HTTP status for a body that the libraries cannot read; its error is in JSON-RPC's format.
    """
    try:
        app.check_token(request)
        body = await read_body(request, app.body_limits)
    except RequestError as error:
        return app.reject(error, request.url.path)
    try:
        await run_if_large(body, check_body)
    except RequestError as error:
        rpc_error = {"code": PARSE_ERROR, "message": str(error)}
        return JSONResponse({"jsonrpc": "2.0", "id": None, "error": rpc_error}, invalid_status)
    return body


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that starts with a body already read."""
    parts = [body]

    async def receive_body() -> Message:
        """Return the body first, then further messages."""
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return receive_body


def check_body(body: bytes) -> None:
    """Check that a body is JSON with bounded depth, size and numbers, and without lone surrogates.

    Raises:
        RequestError: it is not.
    """
    check_size(body, MAX_CONTAINERS, MAX_VALUES)
    table = parse_json(body)
    if exceeds_depth(table, MAX_DEPTH + 1):
        raise invalid_error(f"a call nests at most {MAX_DEPTH} tables and lists")
    try:
        json.dumps(table, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise invalid_error("a text holds half of a character (a lone surrogate)") from None
