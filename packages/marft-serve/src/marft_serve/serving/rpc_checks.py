"""Checks for JSON-RPC bodies in A2A and MCP, within the limits of their libraries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.http import LARGE_BODY_BYTES
from marft_serve.gateway.protocol.parsing import check_size, parse_json

MAX_DEPTH = 32  # nesting levels of tables and lists
MAX_CONTAINERS = 1024  # per call, tables and lists; A2A's library parses them slowly on the server's event loop
MAX_VALUES = 4096
PARSE_ERROR = -32700  # JSON-RPC error code for an unreadable body


async def find_body_error(body: bytes) -> dict[str, Any] | None:
    """Return the JSON-RPC error for a body that the libraries cannot read; None for a valid body.

    A large body is checked on a thread.
    """
    try:
        if len(body) < LARGE_BODY_BYTES:
            check_body(body)
        else:
            await asyncio.to_thread(check_body, body)
    except RequestError as error:
        return {"jsonrpc": "2.0", "id": None, "error": {"code": PARSE_ERROR, "message": str(error)}}
    return None


def check_body(body: bytes) -> None:
    """Check that a body is JSON with bounded depth, size and numbers, and without lone surrogates.

    Raises:
        RequestError: it is not.
    """
    check_size(body, MAX_CONTAINERS, MAX_VALUES)
    table = parse_json(body)
    if _exceeds_depth(MAX_DEPTH, table):
        raise RequestError(400, "invalid_value", f"a call nests at most {MAX_DEPTH} tables and lists")
    try:
        json.dumps(table, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestError(400, "invalid_value", "a text holds half of a character (a lone surrogate)") from None


def _exceeds_depth(max_depth: int, table: Any) -> bool:
    """Return True for tables and lists nested deeper than ``max_depth`` levels."""
    level = [table]
    for _ in range(max_depth + 1):
        level = [inner for value in level for inner in _get_children(value)]
    return bool(level)


def _get_children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
