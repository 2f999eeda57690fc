"""One worker process as the run sees it: what it plays, what it asks for, and whether it may still ask."""

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
    """A worker process while it is there.

    It holds the engine's external wait from every message that may set something going in the worker until the worker
    says that it is still: so an engine that admits requests in order waits for all workers as it would for tools.

    Args:
        leases: what the run has a number of.
        patience: seconds in which a worker must answer.
    """

    def __init__(self, child: Started, engine: Sampler, leases: Leases, patience: float) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self.child, self.engine, self.leases, self.patience = child, engine, leases, patience
        self.agents: tuple[Agent, ...] = ()
        self.usage: Mapping[str, float] = {}
        self.pid = 0
        self.ready = False
        self.over: asyncio.Future[str] = loop.create_future()  # how the process ended
        self._started: asyncio.Future[None] = loop.create_future()
        self._let_go = asyncio.Event()  # of what was called off
        self._let_go.set()
        self._numbers = count()
        self._playing: dict[int, Playing] = {}
        self._requests: dict[int, asyncio.Task[None]] = {}  # and leases
        self._listening: asyncio.Task[None] | None = None
        self._team: bytes | None = None
        self._sent = 0  # messages that may set something going
        self._wait = ExitStack()  # holds the engine's external wait while the worker may ask
        self._waited_for = False
        self._silent = 0  # seconds
        self._garbled = False  # it has sent what no worker says

    async def start(self, begin: Begin) -> None:
        """Have the worker build what it plays on.

        Raises:
            ValueError: something that the recipe names cannot be had there.
            RunError: the process ended before it had begun.
        """
        self._wire = await Wire.over(self.child.socket)
        self._wire.send(begin)
        self._listening = asyncio.create_task(self._listen())
        await self._started

    @property
    def live(self) -> int:
        """Episodes that it plays."""
        return len(self._playing)

    @property
    def most(self) -> float:
        """Episodes that it may play at a time, with what it plays; none while it lets go of that."""
        if not self._let_go.is_set():
            return 0
        return min((playing.most for playing in self._playing.values()), default=math.inf)

    def play(self, attempt: Attempt, team: bytes, most: float = math.inf) -> Playing:
        """Have the worker play an attempt.

        Args:
            most: attempts that it may play while it plays this one.

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
        """Another second has gone by: a worker that has been silent for too many is ended."""
        self._silent += 1
        if self._silent == int(self.patience) + 1:
            self.child.end()
        self._wire.send(Ping())

    async def cancel(self) -> None:
        """Have the worker let go of what it plays: it hears of that once, however many call it off, for a second time
        would reach episodes while they close their sessions."""
        if self.ready and self._let_go.is_set():
            self._let_go.clear()
            self._wire.send(Cancel())
        await self._let_go.wait()

    async def end(self) -> None:
        """Have the process end; one that does not is ended."""
        if self._listening is None:  # it had hardly been started
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
        except Exception:  # noqa: BLE001  what it plays has written into the connection, or has broken what it says
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
                if not self._started.done():  # nobody waits any more where the run ends meanwhile
                    self._started.set_result(None)
            case Refused(fault):
                if not self._started.done():
                    self._started.set_exception(fault.error())

    async def _answer(self, asked: Sample | Choose) -> None:
        try:
            outcome: Any = await asked.put_to(self.engine, self._tell)
        except EpisodeFailedError as failure:
            outcome = Failure(failure.status, failure.reason)
        except Exception as error:  # noqa: BLE001  of the engine itself: nothing can be played any more
            for playing in self._playing.values():
                playing.breaks(error)
            return
        finally:
            self._requests.pop(asked.number, None)
        self._set_going(Answer(asked.number, outcome))

    def _tell(self, message: object) -> None:
        with suppress(RuntimeError):  # the run has ended
            self._loop.call_soon_threadsafe(self._wire.send, message)

    async def _lease(self, asked: Lease) -> None:
        """Keep a slot for the worker until it gives it back, or is gone: then this is cancelled."""
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
        """The process has ended: what it played is lost, and nobody waits for it."""
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
