"""Server for requests to a package's environments: lines of JSON on a socket, each with the ``id`` of its request.

    python -c START FOLDER SOURCE DESCRIPTOR      # as marft_envs.apart.process starts it

``SOURCE`` is a module of this folder. Its ``open_source`` returns the ``Source`` that serves the package's
requests.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
from typing import Any, Protocol

from .calls import described

LARGEST = 2**26  # maximum bytes of a line


class Source(Protocol):
    """Interface to a package's environments; methods may raise any error, and the parent receives it as text."""

    def rows(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the available tasks."""
        ...

    async def begin(self, episode: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Start an episode and return the first observation."""
        ...

    async def say(self, episode: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Pass the team's text to an episode; return the next observation or the outcome."""
        ...

    def drop(self, episode: str) -> None:
        """Drop an episode, if it exists."""
        ...


class Bridge:
    """Concurrent request handler; replies may arrive in any order."""

    def __init__(self, package: str, writer: asyncio.StreamWriter) -> None:
        self.package, self.writer = package, writer
        self.source: Source | None = None
        self.asked: set[asyncio.Task[None]] = set()

    def answer(self, line: bytes) -> None:
        """Start handling one request line."""
        task = asyncio.ensure_future(self._answered(json.loads(line)))
        self.asked.add(task)
        task.add_done_callback(self.asked.discard)

    async def _answered(self, asked: dict[str, Any]) -> None:
        try:
            line = json.dumps({"id": asked["id"], **await self._done(asked)}, default=str)
        except (asyncio.CancelledError, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  third-party code, even a Rust panic; sent back
            line = json.dumps({"id": asked["id"], "error": described(error)})
        self.writer.write(line.encode() + b"\n")

    async def _done(self, asked: dict[str, Any]) -> dict[str, Any]:
        do = asked["do"]
        if do == "open":
            module = importlib.import_module(f".{self.package}", __package__)
            self.source = module.open_source(asked["with"])
            return {}
        assert self.source, "nothing is opened"
        if do == "rows":
            return {"rows": self.source.rows(asked)}
        if do == "begin":
            return await self.source.begin(asked["episode"], asked)
        if do == "say":
            return await self.source.say(asked["episode"], asked)
        self.source.drop(asked["episode"])
        return {}


async def serve(package: str, descriptor: int) -> None:
    """Serve requests until the parent closes the connection."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor), limit=LARGEST)
    bridge = Bridge(package, writer)
    while line := await reader.readline():
        bridge.answer(line)
