"""Calls in JSON-RPC, as A2A and MCP have them: within the bounds of their libraries, or refused in its words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from marft_serve.gateway.http import LARGE
from marft_serve.gateway.protocol.reading import check_size, read_json
from marft_serve.gateway.refusals import RequestError

DEEPEST = 32  # levels of tables and lists, one within another
MOST_TABLES = 1024  # and lists, of a call: A2A's library reads them slowly, on the server's event loop
MOST_VALUES = 4096
PARSE_ERROR = -32700  # JSON-RPC's code for a body that cannot be read


async def refusal_of(body: bytes) -> dict[str, Any] | None:
    """Return the JSON-RPC error that answers a body which the libraries could not read; None where they can.

    A large body is read on a thread.
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
    """See that a body is JSON of bounded depth, size and numbers, in texts that can be written again.

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
    """Whether tables and lists nest deeper than so many levels."""
    level = [table]
    for _ in range(most + 1):
        level = [inner for value in level for inner in _inner(value)]
    return bool(level)


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
