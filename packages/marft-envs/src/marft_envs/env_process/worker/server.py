"""Server for requests to a package's environments: lines of JSON on a socket, each with the ``id`` of its request.

    python -c START FOLDER SOURCE DESCRIPTOR      # as marft_envs.env_process.process starts it

``SOURCE`` is a module of this folder. Its ``open_source`` returns the ``EnvironmentSource`` that serves the package's
requests. Sources also share the parser for tool calls in a team's text, and the format of errors.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
from typing import Any, Protocol

JsonObject = dict[str, Any]
START_TAG, END_TAG = "<tool_call>", "</tool_call>"


def split_tool_calls(text: str) -> tuple[str, list[JsonObject]]:
    """Split a text into prose and tool calls ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``.

    A malformed call stays in the prose.

    Returns:
        The text without its calls, and the calls as dicts with ``name`` and ``arguments``.
    """
    prose: list[str] = []
    calls: list[JsonObject] = []
    at = 0
    while (opened := text.find(START_TAG, at)) >= 0:
        closed = text.find(END_TAG, opened)
        inside = text[opened + len(START_TAG) : closed if closed >= 0 else len(text)]
        prose.append(text[at:opened])
        at = closed + len(END_TAG) if closed >= 0 else len(text)
        try:
            call = json.loads(inside)
            # replace lone surrogates
            call = json.loads(json.dumps(call, ensure_ascii=False).encode("utf-8", "replace"))
            calls.append({"name": str(call["name"]), "arguments": call.get("arguments") or {}})
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            prose.append(text[opened:at])
    return "".join((*prose, text[at:])), calls


def format_error(error: object) -> str:
    """Format an error and its chain of causes."""
    cause = getattr(error, "__cause__", None)
    return f"{type(error).__name__}: {error}"[:2000] + (f" ({format_error(cause)})" if cause else "")


MAX_LINE_BYTES = 2**26  # maximum bytes of a line


class EnvironmentSource(Protocol):
    """Interface to a package's environments; methods may raise any error, and the parent receives it as text."""

    def list_rows(self, request: JsonObject) -> list[JsonObject]:
        """Return the available tasks."""
        ...

    async def start_episode(self, episode: str, request: JsonObject) -> JsonObject:
        """Start an episode and return the first observation."""
        ...

    async def send_text(self, episode: str, request: JsonObject) -> JsonObject:
        """Pass the team's text to an episode; return the next observation or the outcome."""
        ...

    def drop_episode(self, episode: str) -> None:
        """Drop an episode, if it exists."""
        ...


class RequestHandler:
    """Concurrent request handler; replies may arrive in any order."""

    def __init__(self, package: str, writer: asyncio.StreamWriter) -> None:
        self.package, self.writer = package, writer
        self.source: EnvironmentSource | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    def handle_line(self, line: bytes) -> None:
        """Start handling one request line."""
        task = asyncio.ensure_future(self._reply(json.loads(line)))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _reply(self, request: JsonObject) -> None:
        try:
            line = json.dumps({"id": request["id"], **await self._dispatch(request)}, default=str)
        except (asyncio.CancelledError, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  third-party code, even a Rust panic; sent back
            line = json.dumps({"id": request["id"], "error": format_error(error)})
        self.writer.write(line.encode() + b"\n")

    async def _dispatch(self, request: JsonObject) -> JsonObject:
        action = request["do"]
        if action == "open":
            module = importlib.import_module(f".{self.package}", __package__)
            self.source = module.open_source(request["with"])
            return {}
        assert self.source, "nothing is opened"
        if action == "rows":
            return {"rows": self.source.list_rows(request)}
        if action == "begin":
            return await self.source.start_episode(request["episode"], request)
        if action == "say":
            return await self.source.send_text(request["episode"], request)
        self.source.drop_episode(request["episode"])
        return {}


async def serve(package: str, descriptor: int) -> None:
    """Serve requests until the parent closes the connection."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor), limit=MAX_LINE_BYTES)
    bridge = RequestHandler(package, writer)
    while line := await reader.readline():
        bridge.handle_line(line)
