"""Processes of engines apart that are only played: in this process, at the other end of a socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from marft.common.processes.connection import AsyncConnection
from marft.common.processes.messages import Completed
from marft.inference.subprocess_engine.messages import (
    TO_ENGINE,
    VALUES,
    CancelRequest,
    EngineInit,
    EngineReady,
    LoadCommand,
    SampleRequest,
    ScoreRequest,
    ScoreResponse,
    SleepCommand,
    TokenChunk,
)

ENDED = "ended itself (exit status 3)"


class Life:
    """One process from inside: what it was told, and what it says."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection
        self.told: list[Any] = []
        self.versions: dict[str, int] = {}

    async def begin(self) -> None:
        assert isinstance(await self.connection.receive(), EngineInit)
        self.connection.send(EngineReady(0, "played", ""))

    async def next(self, *kinds: type) -> Any:
        """The next message of one of these kinds; what is to be loaded meanwhile is."""
        while True:
            message = await self.connection.receive()
            self.told.append(message)
            if isinstance(message, kinds):
                return message
            if isinstance(message, LoadCommand | SleepCommand):
                self.loaded(message)

    def loaded(self, message: LoadCommand | SleepCommand) -> None:
        if isinstance(message, LoadCommand):
            self.versions[message.policy] = message.version
        self.connection.send(Completed(message.number))

    def say(self, ask: SampleRequest, *tokens: int, finish: str = "length") -> None:
        version = self.versions[ask.policy]
        ids = np.array(tokens, np.int32)
        self.connection.send(TokenChunk(ask.number, ids, -ids.astype(np.float32), finish, version, version))

    def of(self, *kinds: type) -> list[Any]:
        return [message for message in self.told if isinstance(message, kinds)]


class Process:
    """One process from outside."""

    def __init__(self, number: int, how: str) -> None:
        self.number, self.how, self.name = number, how, "played"
        self.output_tail: deque[str] = deque()
        self.socket, self.theirs = socket.socketpair()
        self.free = threading.Event()  # to take what is carried to it
        self.dropped_folders: list[Path] = []

    def end(self) -> None: ...

    def close(self) -> None:
        self.socket.close()

    def wait_or_terminate(self) -> str:
        return self.how

    def share_folder(self, folder: Path) -> str:
        assert self.free.wait(10)
        return f"/{self.number}{folder}"

    def release_folder(self, folder: Path) -> None:
        self.dropped_folders.append(folder)


class Starter:
    """Plays a life after the other, the last one again and again.

    Args:
        how: each of them ends.
        busy: the number of one to which nothing can be carried, until it is let.
    """

    host = ""

    def __init__(self, *plays: Callable[[Life], Awaitable[None]], how: str = ENDED, busy: int = -1) -> None:
        self.plays, self.how, self.busy = plays, how, busy
        self.loop = asyncio.get_running_loop()
        self.lives: list[Life] = []
        self.processes: list[Process] = []

    def start(self, *_: object, **__: object) -> Process:
        process = Process(len(self.processes), self.how)
        if process.number != self.busy:
            process.free.set()
        play = self.plays[min(process.number, len(self.plays) - 1)]
        self.processes.append(process)
        asyncio.run_coroutine_threadsafe(self._live(process, play), self.loop)
        return process

    async def _live(self, process: Process, play: Callable[[Life], Awaitable[None]]) -> None:
        connection = await AsyncConnection.from_socket(process.theirs, TO_ENGINE, VALUES)
        self.lives.append(life := Life(connection))
        try:
            await play(life)
        except EOFError:  # it was ended
            pass
        finally:
            connection.close()

    def close(self) -> None: ...


async def answers(life: Life) -> None:
    """One that does what it is asked for."""
    await life.begin()
    while True:
        message = await life.next(SampleRequest, ScoreRequest, CancelRequest)
        if isinstance(message, SampleRequest):
            life.say(message, *np.resize(message.prompt, message.sampling.max_new_tokens).tolist())
        elif isinstance(message, ScoreRequest):
            likely = -message.sizes.astype(np.float32) * message.temperature
            life.connection.send(ScoreResponse(message.number, likely, 0, 0))


async def dies_asked(life: Life) -> None:
    """One that ends when it is asked for something."""
    await life.begin()
    await life.next(SampleRequest, ScoreRequest)


async def mute(life: Life) -> None:
    """One that takes what it is asked for, and says nothing."""
    await life.begin()
    while True:
        await life.next(SampleRequest)
