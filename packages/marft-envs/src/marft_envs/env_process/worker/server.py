"""Server for requests to a package's environments: lines of JSON on a socket, each with the ``id`` of its request.

    python -c START FOLDER SOURCE DESCRIPTOR      # as marft_envs.env_process.process starts it

``SOURCE`` is a module of this folder. Its ``open_source`` returns the ``EnvironmentSource`` that serves the package's
requests.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
from typing import Any, Protocol

from .tool_calls import format_error

MAX_LINE_BYTES = 2**26  # maximum bytes of a line


class EnvironmentSource(Protocol):
    """Interface to a package's environments; methods may raise any error, and the parent receives it as text."""

    def list_rows(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the available tasks."""
        ...

    async def start_episode(self, episode: str, request: dict[str, Any]) -> dict[str, Any]:
        """Start an episode and return the first observation."""
        ...

    async def send_text(self, episode: str, request: dict[str, Any]) -> dict[str, Any]:
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

    async def _reply(self, request: dict[str, Any]) -> None:
        try:
            line = json.dumps({"id": request["id"], **await self._dispatch(request)}, default=str)
        except (asyncio.CancelledError, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  third-party code, even a Rust panic; sent back
            line = json.dumps({"id": request["id"], "error": format_error(error)})
        self.writer.write(line.encode() + b"\n")

    async def _dispatch(self, request: dict[str, Any]) -> dict[str, Any]:
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
