"""Checks for JSON-RPC bodies in A2A and MCP, within the limits of their libraries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from marft_serve.gateway.http import LARGE
from marft_serve.gateway.protocol.reading import check_size, read_json
from marft_serve.gateway.refusals import RequestError

DEEPEST = 32  # nesting levels of tables and lists
MOST_TABLES = 1024  # per call, tables and lists; A2A's library parses them slowly on the server's event loop
MOST_VALUES = 4096
PARSE_ERROR = -32700  # JSON-RPC error code for an unreadable body


async def refusal_of(body: bytes) -> dict[str, Any] | None:
    """Return the JSON-RPC error for a body that the libraries cannot read; None for a valid body.

    A large body is checked on a thread.
    """
    try:
        if len(body) < LARGE:
            check(body)
        else:
            await asyncio.to_thread(check, body)
    except RequestError as error:
        return {"jsonrpc": "2.0", "id": None, "error": {"code": PARSE_ERROR, "message": str(error)}}
    return None


def check(body: bytes) -> None:
    """Check that a body is JSON with bounded depth, size and numbers, and without lone surrogates.

    Raises:
        RequestError: it is not.
    """
    check_size(body, MOST_TABLES, MOST_VALUES)
    table = read_json(body)
    if _depth_over(DEEPEST, table):
        raise RequestError(400, "invalid_value", f"a call nests at most {DEEPEST} tables and lists")
    try:
        json.dumps(table, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestError(400, "invalid_value", "a text holds half of a character (a lone surrogate)") from None


def _depth_over(most: int, table: Any) -> bool:
    """Return True for tables and lists nested deeper than ``most`` levels."""
    level = [table]
    for _ in range(most + 1):
        level = [inner for value in level for inner in _inner(value)]
    return bool(level)


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
