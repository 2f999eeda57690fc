"""Worker process: holds environment, tools and reward terms, and plays attempts for the run."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from marft.agents.game import Attempt
from marft.agents.play import play
from marft.agents.sandbox.runner import terminate_all
from marft.agents.team import Team
from marft.common.log import receive_logs, write_line
from marft.common.processes.connection import AsyncConnection
from marft.common.processes.pickling import unpickle_value
from marft.common.processes.remote_error import RemoteError
from marft.common.types import Task
from marft.config.run import RunSettings
from marft.config.secrets import redacted
from marft.envs.game_runtime import GameRuntime, open_terms
from marft.inference.renderer import ChatRenderer
from marft.rollout.workers.client import LeasedLimits, LeasedThreadPool, SamplerClient
from marft.rollout.workers.messages import (
    TO_WORKER,
    VALUES,
    AttemptFailed,
    AttemptsCanceled,
    CancelAttempts,
    ChangeTeam,
    EndRun,
    EpisodeEnded,
    EpisodeRewarded,
    LeaseGranted,
    Ping,
    PlayAttempt,
    Pong,
    Quiescence,
    RequestResult,
    SampledToken,
    StartWorker,
    WorkerReady,
)

POLL_SECONDS = 0.1
PLACEHOLDER_TASK = Task("", "")  # placeholder; the run has the task of every attempt


def main(descriptor: int) -> None:
    """Serve the run over a socket until the run ends.

    Args:
        descriptor: file descriptor of the socket; child processes do not inherit it.
    """
    os.set_inheritable(descriptor, False)
    with receive_logs(redacted(write_line), logging.WARNING):
        asyncio.run(_serve(socket.socket(fileno=descriptor)))


async def _serve(connection: socket.socket) -> None:
    stream = await AsyncConnection.from_socket(connection, TO_WORKER, VALUES)
    try:
        start_message: StartWorker = await stream.receive()
    except EOFError:  # the run has ended
        return
    with ExitStack() as started:
        try:
            worker = Worker(start_message, stream, started)
        except Exception as error:  # noqa: BLE001  every error is reported to the run
            stream.send(RemoteError.from_error(error))
            await stream.drain()
            return
        await worker.serve()


class Worker:
    """Components of the recipe except for models, and the attempts in progress.

    Args:
        start_message: first message of the run.
        stream: connection to the run.
        started: stack that receives the components to close at the end.
    """

    def __init__(self, start_message: StartWorker, stream: AsyncConnection, started: ExitStack) -> None:
        from transformers.utils import logging

        logging.set_verbosity(start_message.log_level)
        run: RunSettings = unpickle_value(start_message.run)
        formats = unpickle_value(start_message.formats)
        self.stream = stream
        self.client = SamplerClient(stream.send, [name for name, format in formats.items() if format.remote])
        limits, threads = partial(LeasedLimits, self.client, asyncio.get_running_loop()), LeasedThreadPool(self.client)
        terms = open_terms(run, started.callback, limits)
        self.parts = GameRuntime(run, terms, self.client, ChatRenderer(formats), threads)
        started.callback(self.parts.close)
        self.team = self.parts.game.team
        self._attempts: set[asyncio.Task[None]] = set()
        self._cancel_task: asyncio.Task[None] | None = None
        self._received = 0  # number of received messages that may start work
        self._has_work = asyncio.Event()

    async def serve(self) -> None:
        """Handle messages until the end message, or until the connection closes."""
        self.stream.send(WorkerReady(os.getpid(), self.parts.game.team.agents, self.parts.usage()))
        report_task = asyncio.create_task(self._report_quiescence())
        try:
            while True:
                for message in await self.stream.receive_together():
                    if isinstance(message, EndRun):
                        return
                    self._handle_message(message)
        except EOFError:
            return
        finally:
            report_task.cancel()

    def _handle_message(self, message: object) -> None:
        if isinstance(message, PlayAttempt | RequestResult):
            self._received += 1
            self.client.barrier.notify_activity()
            self._has_work.set()
        if isinstance(message, RequestResult | LeaseGranted | SampledToken):
            self.client.deliver(message)
        elif isinstance(message, PlayAttempt):
            task = asyncio.create_task(self._play(message, self.team))
            self._attempts.add(task)
            task.add_done_callback(self._attempts.discard)
        elif isinstance(message, ChangeTeam):
            agents, organization, channel = unpickle_value(message.team)
            recipe_team = self.parts.game.team
            organization, channel = organization or recipe_team.organization, channel or recipe_team.channel
            self.team = replace(recipe_team, agents=agents, organization=organization, channel=channel)
        elif isinstance(message, CancelAttempts):
            self._cancel_task = asyncio.create_task(self._cancel_attempts())
        elif isinstance(message, Ping):
            self.stream.send(Pong())

    async def _play(self, message: PlayAttempt, team: Team) -> None:
        number = message.number
        try:
            attempt: Attempt = unpickle_value(message.attempt)
            episode = await play(replace(self.parts.game, team=team), attempt)
            self.stream.send(EpisodeEnded(number))
            episode = await self.parts.reward_manager(episode)
            self.stream.send(EpisodeRewarded(number, replace(episode, task=PLACEHOLDER_TASK), self.parts.usage()))
        except Exception as error:  # noqa: BLE001  every error is reported to the run
            self.stream.send(AttemptFailed(number, RemoteError.from_error(error)))

    async def _cancel_attempts(self) -> None:
        """Cancel all attempts in progress.

        Sandboxed processes are killed, because attempts may wait for them.
        """
        remaining = set(self._attempts)
        for task in remaining:
            task.cancel()
        while remaining:
            terminate_all()
            _, remaining = await asyncio.wait(remaining, timeout=POLL_SECONDS)
        self.stream.send(AttemptsCanceled(self.parts.usage()))

    async def _report_quiescence(self) -> None:
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            await self.client.barrier.wait()
            self.stream.send(Quiescence(self._received))
