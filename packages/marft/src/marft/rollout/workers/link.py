"""Worker process handle: attempts, requests, and heartbeat."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import count
from typing import Any

from marft.agents.agents import Agent
from marft.agents.engine import Sampler
from marft.agents.game import Attempt
from marft.common.errors import EpisodeFailedError, RunError
from marft.common.processes.child import END_SECONDS
from marft.common.processes.starting import Started
from marft.rollout.workers.leases import Leases
from marft.rollout.workers.messages import (
    Answer,
    Begin,
    Broken,
    Cancel,
    Cancelled,
    Change,
    Choose,
    End,
    Failure,
    Forget,
    GiveBack,
    Granted,
    Lease,
    Over,
    Ping,
    Play,
    Played,
    Ready,
    Refused,
    Sample,
    Still,
    Turn,
    pickled,
)
from marft.rollout.workers.tried import LostError, Playing
from marft.rollout.workers.wire import Wire


class Link:
    """Connection to a running worker process.

    The link holds the engine's external wait from each message that may start work in the worker, until the worker
    reports quiescence. An engine that admits requests in order therefore waits for all workers, as for tools.

    Args:
        child: started worker process.
        engine: sampler for the worker's requests.
        leases: slots and rate limits of the run.
        patience: maximum seconds without an answer from the worker.
    """

    def __init__(self, child: Started, engine: Sampler, leases: Leases, patience: float) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self.child, self.engine, self.leases, self.patience = child, engine, leases, patience
        self.agents: tuple[Agent, ...] = ()
        self.usage: Mapping[str, float] = {}
        self.pid = 0
        self.ready = False
        self.over: asyncio.Future[str] = loop.create_future()  # set to a description of how the process ended
        self._started: asyncio.Future[None] = loop.create_future()
        self._let_go = asyncio.Event()  # set unless a cancellation is in progress
        self._let_go.set()
        self._numbers = count()
        self._playing: dict[int, Playing] = {}
        self._requests: dict[int, asyncio.Task[None]] = {}  # requests and leases by number
        self._listening: asyncio.Task[None] | None = None
        self._team: bytes | None = None
        self._sent = 0  # number of sent messages that may start work
        self._wait = ExitStack()  # holds the engine's external wait while the worker may send requests
        self._waited_for = False
        self._silent = 0  # seconds since the last message
        self._garbled = False  # the worker sent an unreadable message

    async def start(self, begin: Begin) -> None:
        """Build the recipe's components in the worker.

        Raises:
            ValueError: a component of the recipe is unavailable in the worker.
            RunError: the process ended during its start.
        """
        self._wire = await Wire.over(self.child.socket)
        self._wire.send(begin)
        self._listening = asyncio.create_task(self._listen())
        await self._started

    @property
    def live(self) -> int:
        """Number of attempts in progress."""
        return len(self._playing)

    @property
    def most(self) -> float:
        """Maximum number of concurrent attempts; 0 during a cancellation.

        The limit is the minimum over the attempts in progress.
        """
        if not self._let_go.is_set():
            return 0
        return min((playing.most for playing in self._playing.values()), default=math.inf)

    def play(self, attempt: Attempt, team: bytes, most: float = math.inf) -> Playing:
        """Start an attempt in the worker.

        Args:
            attempt: attempt to play.
            team: pickled team to play with.
            most: maximum number of concurrent attempts in the worker during this attempt.

        Raises:
            ValueError: the attempt cannot be sent.
        """
        loop = asyncio.get_running_loop()
        sent = pickled(attempt, f"task {attempt.task.id!r}")
        if team != self._team:
            self._wire.send(Change(team))
            self._team = team
        number = next(self._numbers)
        self._playing[number] = playing = Playing(attempt, loop.create_future(), loop.create_future(), most)
        self._set_going(Play(number, sent))
        return playing

    def tick(self) -> None:
        """Ping the worker, once per second; end a worker after too long a silence."""
        self._silent += 1
        if self._silent == int(self.patience) + 1:
            self.child.end()
        self._wire.send(Ping())

    async def cancel(self) -> None:
        """Cancel the worker's attempts.

        The worker receives a single message, even after several calls. A second message would cancel episodes during
        the cleanup of their sessions.
        """
        if self.ready and self._let_go.is_set():
            self._let_go.clear()
            self._wire.send(Cancel())
        await self._let_go.wait()

    async def end(self) -> None:
        """Stop the process; kill the process after a timeout."""
        if self._listening is None:  # not listening yet
            self.child.end()
            return
        self._wire.send(End())
        _, left = await asyncio.wait([self.over], timeout=END_SECONDS)
        if left:
            self.child.end()
            await self.over

    async def _listen(self) -> None:
        try:
            while True:
                for message in await self._wire.receive():
                    self._silent = 0
                    self._heed(message)
        except EOFError:
            pass
        except Exception:  # noqa: BLE001  code in the worker wrote into the connection or broke a message
            self._garbled = True
            self.child.end()
        finally:
            self.ready = False
            self._gone(await asyncio.to_thread(self.child.outcome))

    def _heed(self, message: object) -> None:
        match message:
            case Sample() | Choose():
                self._requests[message.number] = asyncio.create_task(self._answer(message))
            case Lease(number):
                self._requests[number] = asyncio.create_task(self._lease(message))
            case Turn(number):
                self._requests[number] = asyncio.create_task(self._take_turn(message))
            case Forget(number) | GiveBack(number):
                if task := self._requests.pop(number, None):
                    task.cancel()
            case Still(received):
                if received == self._sent:
                    self._wait.close()
                    self._waited_for = False
            case Over(number):
                if (playing := self._playing.get(number)) and not playing.over.done():
                    playing.over.set_result(None)
            case Played(number, episode, usage):
                self.usage = usage
                if playing := self._playing.pop(number, None):
                    playing.ends(replace(episode, task=playing.attempt.task))
            case Broken(number, fault):
                if playing := self._playing.pop(number, None):
                    playing.breaks(fault.error())
            case Cancelled(usage):
                self.usage = usage
                self._playing.clear()
                self._let_go.set()
            case Ready(pid, agents, usage):
                self.pid, self.agents, self.usage, self.ready = pid, agents, usage, True
                if not self._started.done():  # done if the run ended during the start
                    self._started.set_result(None)
            case Refused(fault):
                if not self._started.done():
                    self._started.set_exception(fault.error())

    async def _answer(self, asked: Sample | Choose) -> None:
        try:
            outcome: Any = await asked.put_to(self.engine, self._tell)
        except EpisodeFailedError as failure:
            outcome = Failure(failure.status, failure.reason)
        except Exception as error:  # noqa: BLE001  error of the engine: no attempt can continue
            for playing in self._playing.values():
                playing.breaks(error)
            return
        finally:
            self._requests.pop(asked.number, None)
        self._set_going(Answer(asked.number, outcome))

    def _tell(self, message: object) -> None:
        with suppress(RuntimeError):  # the event loop is closed after the run
            self._loop.call_soon_threadsafe(self._wire.send, message)

    async def _lease(self, asked: Lease) -> None:
        """Hold a slot for the worker; cancelled when the worker returns the slot or ends."""
        async with self.leases.slot(asked.name, asked.count):
            self._wire.send(Granted(asked.number))
            await asyncio.Event().wait()

    async def _take_turn(self, asked: Turn) -> None:
        await self.leases.turn(asked.name, asked.per_minute)
        self._wire.send(Granted(asked.number))

    def _set_going(self, message: Play | Answer) -> None:
        self._sent += 1
        if not self._waited_for:
            self._wait.enter_context(self.engine.external_wait())
            self._waited_for = True
        self._wire.send(message)

    def _gone(self, outcome: str) -> None:
        """Fail the remaining attempts after the process ended."""
        hung = self._silent > self.patience
        reason = f"the worker process that played it {outcome}"
        if self._garbled:
            reason = "the worker process that played it sent what cannot be read, and was ended"
        if hung:
            reason = f"the worker process that played it did not answer for over {self.patience:g} s, and was ended"
        for task in self._requests.values():
            task.cancel()
        company = len(self._playing)
        for playing in self._playing.values():
            playing.breaks(LostError("timed_out" if hung else "failed", reason, company))
        self._playing.clear()
        self._wait.close()
        self._wire.close()
        self._let_go.set()
        if not self._started.done():
            self._started.set_exception(RunError(f"a worker process {outcome} before it had begun"))
        self.over.set_result(outcome)
