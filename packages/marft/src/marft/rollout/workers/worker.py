"""Worker process: holds environment, tools and reward terms, and plays attempts for the run."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from marft.agents.game import Attempt
from marft.agents.play import play
from marft.agents.sandbox.runner import end_all
from marft.agents.team import Team
from marft.common.types import Task
from marft.config.run import RunSettings
from marft.envs.game_parts import GameParts, open_terms
from marft.inference.renderer import ChatRenderer
from marft.rollout.workers.client import Client
from marft.rollout.workers.leasing import LeasedLimits, LeasingThreads
from marft.rollout.workers.messages import (
    Answer,
    Begin,
    Broken,
    Cancel,
    Cancelled,
    Change,
    End,
    Fault,
    Granted,
    Over,
    Ping,
    Play,
    Played,
    Pong,
    Ready,
    Refused,
    Sampled,
    Still,
)
from marft.rollout.workers.wire import Wire

POLL_SECONDS = 0.1
ELSEWHERE = Task("", "")  # placeholder; the run has the task of every attempt


def main(descriptor: int) -> None:
    """Serve the run over a socket until the run ends.

    Args:
        descriptor: file descriptor of the socket; child processes do not inherit it.
    """
    os.set_inheritable(descriptor, False)
    asyncio.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(connection: socket.socket) -> None:
    wire = await Wire.over(connection)
    try:
        (begin,) = await wire.receive()
    except EOFError:  # the run has ended
        return
    with ExitStack() as started:
        try:
            worker = Worker(begin, wire, started)
        except Exception as error:  # noqa: BLE001  every error is reported to the run
            wire.send(Refused(Fault.of(error)))
            await wire.drained()
            return
        await worker.serve()


class Worker:
    """Components of the recipe except for models, and the attempts in progress.

    Args:
        begin: first message of the run.
        wire: connection to the run.
        started: stack that receives the components to close at the end.
    """

    def __init__(self, begin: Begin, wire: Wire, started: ExitStack) -> None:
        from transformers.utils import logging

        logging.set_verbosity(begin.verbosity)
        run: RunSettings = pickle.loads(begin.run)
        formats = pickle.loads(begin.formats)
        self.wire = wire
        self.client = Client(wire.send, [name for name, format in formats.items() if format.remote])
        limits, threads = partial(LeasedLimits, self.client, asyncio.get_running_loop()), LeasingThreads(self.client)
        terms = open_terms(run, started.callback, limits)
        self.parts = GameParts(run, terms, self.client, ChatRenderer(formats), threads)
        started.callback(self.parts.close)
        self.team = self.parts.game.team
        self._playing: set[asyncio.Task[None]] = set()
        self._cancelling: asyncio.Task[None] | None = None
        self._received = 0  # number of received messages that may start work
        self._set_going = asyncio.Event()

    async def serve(self) -> None:
        """Handle messages until the end message, or until the connection closes."""
        self.wire.send(Ready(os.getpid(), self.parts.game.team.agents, self.parts.usage()))
        telling = asyncio.create_task(self._tell_when_still())
        try:
            while True:
                for message in await self.wire.receive():
                    if isinstance(message, End):
                        return
                    self._heed(message)
        except EOFError:
            return
        finally:
            telling.cancel()

    def _heed(self, message: object) -> None:
        if isinstance(message, Play | Answer):
            self._received += 1
            self.client.stillness.stir()
            self._set_going.set()
        if isinstance(message, Answer | Granted | Sampled):
            self.client.hear(message)
        elif isinstance(message, Play):
            task = asyncio.create_task(self._play(message, self.team))
            self._playing.add(task)
            task.add_done_callback(self._playing.discard)
        elif isinstance(message, Change):
            agents, organization, channel = pickle.loads(message.team)
            own = self.parts.game.team
            organization, channel = organization or own.organization, channel or own.channel
            self.team = replace(own, agents=agents, organization=organization, channel=channel)
        elif isinstance(message, Cancel):
            self._cancelling = asyncio.create_task(self._cancel())
        elif isinstance(message, Ping):
            self.wire.send(Pong())

    async def _play(self, message: Play, team: Team) -> None:
        number = message.number
        try:
            attempt: Attempt = pickle.loads(message.attempt)
            episode = await play(replace(self.parts.game, team=team), attempt)
            self.wire.send(Over(number))
            episode = await self.parts.compose(episode)
            self.wire.send(Played(number, replace(episode, task=ELSEWHERE), self.parts.usage()))
        except Exception as error:  # noqa: BLE001  every error is reported to the run
            self.wire.send(Broken(number, Fault.of(error)))

    async def _cancel(self) -> None:
        """Cancel all attempts in progress.

        Sandboxed processes are killed, because attempts may wait for them.
        """
        left = set(self._playing)
        for task in left:
            task.cancel()
        while left:
            end_all()
            _, left = await asyncio.wait(left, timeout=POLL_SECONDS)
        self.wire.send(Cancelled(self.parts.usage()))

    async def _tell_when_still(self) -> None:
        while True:
            await self._set_going.wait()
            self._set_going.clear()
            await self.client.stillness.reached()
            self.wire.send(Still(self._received))
