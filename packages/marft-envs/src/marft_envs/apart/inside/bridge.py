"""Answers what is asked of a package's environments: lines of JSON on a socket, each with the ``id`` of its question.

    python -c START FOLDER SOURCE DESCRIPTOR      # as marft_envs.apart.process starts it

``SOURCE`` is a module of this folder, whose ``open_source`` says what is asked of which package.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
from typing import Any, Protocol

from .calls import described

LARGEST = 2**26  # bytes of a line


class Source(Protocol):
    """A package's environments. Whatever one of these raises is told in words."""

    def rows(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        """What can be played."""
        ...

    async def begin(self, episode: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Begin an episode → what is shown first."""
        ...

    async def say(self, episode: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Tell an episode what was said → what is shown next, or how it ended."""
        ...

    def drop(self, episode: str) -> None:
        """Let go of an episode, whether there is one or not."""
        ...


class Bridge:
    """Answers lines, each in its own time."""

    def __init__(self, package: str, writer: asyncio.StreamWriter) -> None:
        self.package, self.writer = package, writer
        self.source: Source | None = None
        self.asked: set[asyncio.Task[None]] = set()

    def answer(self, line: bytes) -> None:
        task = asyncio.ensure_future(self._answered(json.loads(line)))
        self.asked.add(task)
        task.add_done_callback(self.asked.discard)

    async def _answered(self, asked: dict[str, Any]) -> None:
        try:
            line = json.dumps({"id": asked["id"], **await self._done(asked)}, default=str)
        except (asyncio.CancelledError, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  of somebody's environment, a panic of Rust too: it is told
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
    """Answer until the other end is gone."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor), limit=LARGEST)
    bridge = Bridge(package, writer)
    while line := await reader.readline():
        bridge.answer(line)
