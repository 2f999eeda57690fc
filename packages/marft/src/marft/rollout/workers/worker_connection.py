"""Connection to a worker process: attempts, requests, leases and heartbeat."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from marft.agents.agents import Agent
from marft.agents.game import Attempt
from marft.agents.loop_threads import LoopThreadPool
from marft.common.errors import EpisodeFailedError, RunError
from marft.common.processes.child_process import END_SECONDS
from marft.common.processes.connection import AsyncConnection
from marft.common.processes.launcher import ProcessHandle
from marft.common.processes.messages import MessageError
from marft.common.processes.pickling import pickle_value
from marft.common.processes.remote_error import RemoteError
from marft.common.types import Episode, Status
from marft.config.interfaces.engine import Sampler
from marft.inference.endpoints.limits import RateLimit
from marft.rollout.workers.messages import (
    FROM_WORKER,
    VALUES,
    AttemptFailed,
    AttemptsCanceled,
    CancelAttempts,
    CancelRequest,
    ChangeTeam,
    ChooseRequest,
    EndRun,
    EpisodeEnded,
    EpisodeRewarded,
    LeaseGranted,
    LeaseRequest,
    Ping,
    PlayAttempt,
    Quiescence,
    ReleaseLease,
    RequestFailure,
    RequestResult,
    SampleRequest,
    StartWorker,
    TurnRequest,
    WorkerReady,
)


class WorkerLostError(Exception):
    """Error for a lost process and its attempts.

    Args:
        status: status of the episode if the attempt is given up.
        reason: description of how the process ended.
        attempt_count: number of attempts in the lost process, this attempt included.
    """

    def __init__(self, status: Status, reason: str, attempt_count: int) -> None:
        super().__init__(reason)
        self.status, self.reason, self.attempt_count = status, reason, attempt_count


@dataclass(frozen=True, slots=True, eq=False)
class ActiveAttempt:
    """Attempt in progress in a worker.

    Args:
        attempt: attempt in progress.
        ended: future, done when the episode no longer counts as live.
        episode: future of the rewarded episode.
        max_concurrent: maximum number of concurrent attempts in the worker, this attempt included.
    """

    attempt: Attempt
    ended: asyncio.Future[None]
    episode: asyncio.Future[Episode]
    max_concurrent: float = math.inf

    def set_episode(self, episode: Episode) -> None:
        """Set the rewarded episode."""
        if not self.ended.done():
            self.ended.set_result(None)
        if not self.episode.done():
            self.episode.set_result(episode)

    def set_error(self, error: Exception) -> None:
        """Set an error on both futures."""
        for future in (self.ended, self.episode):
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks the error as retrieved, even without a waiting coroutine


class Leases:
    """Named slots and rate limits of the whole run."""

    def __init__(self) -> None:
        self._slots = LoopThreadPool().slots
        self._turns: dict[str, RateLimit] = {}

    def slot(self, name: str, count: int) -> AbstractAsyncContextManager[object]:
        """Return a context manager that holds a slot, out of ``count`` slots."""
        return self._slots(name, count)

    async def turn(self, name: str, per_minute: float) -> None:
        """Wait for a turn within ``per_minute`` turns per minute."""
        if name not in self._turns:
            self._turns[name] = RateLimit(per_minute)
        await self._turns[name].wait()


class WorkerConnection:
    """Connection to a running worker process.

    It holds the engine's external wait from each message that may start work in the worker, until the worker
    reports quiescence. An engine that admits requests in order therefore waits for all workers, as for tools.

    Args:
        child: started worker process.
        engine: sampler for the worker's requests.
        leases: slots and rate limits of the run.
        timeout_seconds: maximum seconds without an answer from the worker.
    """

    def __init__(self, child: ProcessHandle, engine: Sampler, leases: Leases, timeout_seconds: float) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self.child, self.engine, self.leases, self.timeout_seconds = child, engine, leases, timeout_seconds
        self.agents: tuple[Agent, ...] = ()
        self.usage: Mapping[str, float] = {}
        self.pid = 0
        self.ready = False
        self.exited: asyncio.Future[str] = loop.create_future()  # set to a description of how the process ended
        self._started: asyncio.Future[None] = loop.create_future()
        self._not_canceling = asyncio.Event()  # set unless a cancellation is in progress
        self._not_canceling.set()
        self._numbers = count()
        self._attempts: dict[int, ActiveAttempt] = {}
        self._requests: dict[int, asyncio.Task[None]] = {}  # requests and leases by number
        self._listen_task: asyncio.Task[None] | None = None
        self._team: bytes | None = None
        self._sent = 0  # number of sent messages that may start work
        self._wait = ExitStack()  # holds the engine's external wait while the worker may send requests
        self._is_waiting = False
        self._silent_seconds = 0  # seconds since the last message
        self._is_corrupt = False  # the worker sent an unreadable message

    async def start(self, start_message: StartWorker) -> None:
        """Build the recipe's components in the worker.

        Raises:
            ValueError: a component of the recipe is unavailable in the worker.
            RunError: the process ended during its start.
        """
        self._stream = await AsyncConnection.from_socket(self.child.socket, FROM_WORKER, VALUES)
        self._stream.send(start_message)
        self._listen_task = asyncio.create_task(self._listen())
        await self._started

    @property
    def live_count(self) -> int:
        """Number of attempts in progress."""
        return len(self._attempts)

    @property
    def max_concurrent(self) -> float:
        """Maximum number of concurrent attempts; 0 during a cancellation.

        The limit is the minimum over the attempts in progress.
        """
        if not self._not_canceling.is_set():
            return 0
        return min((active.max_concurrent for active in self._attempts.values()), default=math.inf)

    def play(self, attempt: Attempt, team: bytes, max_concurrent: float = math.inf) -> ActiveAttempt:
        """Start an attempt in the worker.

        Args:
            attempt: attempt to play.
            team: pickled team to play with.
            max_concurrent: maximum number of concurrent attempts in the worker during this attempt.

        Raises:
            ValueError: the attempt cannot be sent.
        """
        loop = asyncio.get_running_loop()
        sent = pickle_value(attempt, f"task {attempt.task.id!r}")
        if team != self._team:
            self._stream.send(ChangeTeam(team))
            self._team = team
        number = next(self._numbers)
        self._attempts[number] = active = ActiveAttempt(
            attempt, loop.create_future(), loop.create_future(), max_concurrent
        )
        self._send_work(PlayAttempt(number, sent))
        return active

    def send_heartbeat(self) -> None:
        """Ping the worker, once per second; end a worker after too long a silence."""
        self._silent_seconds += 1
        if self._silent_seconds == int(self.timeout_seconds) + 1:
            self.child.end()
        self._stream.send(Ping())

    async def cancel(self) -> None:
        """Cancel the worker's attempts.

        The worker receives a single message, even after several calls. A second message would cancel episodes during
        the cleanup of their sessions.
        """
        if self.ready and self._not_canceling.is_set():
            self._not_canceling.clear()
            self._stream.send(CancelAttempts())
        await self._not_canceling.wait()

    async def end(self) -> None:
        """Stop the process; kill the process after a timeout."""
        if self._listen_task is None:  # not listening yet
            self.child.end()
            return
        self._stream.send(EndRun())
        _, pending = await asyncio.wait([self.exited], timeout=END_SECONDS)
        if pending:
            self.child.end()
            await self.exited

    async def _listen(self) -> None:
        try:
            while True:
                for message in await self._stream.receive_together():
                    self._silent_seconds = 0
                    self._handle_message(message)
        except EOFError:
            pass
        except Exception:  # noqa: BLE001  code in the worker wrote into the connection or broke a message
            self._is_corrupt = True
            self.child.end()
        finally:
            self.ready = False
            outcome = "ended for an unknown reason"
            try:
                outcome = await asyncio.to_thread(self.child.wait_or_terminate)
            finally:
                self._handle_exit(outcome)

    def _handle_message(self, message: object) -> None:
        match message:
            case SampleRequest() | ChooseRequest():
                self._requests[message.number] = asyncio.create_task(self._answer_request(message))
            case LeaseRequest(number):
                self._requests[number] = asyncio.create_task(self._hold_slot(message))
            case TurnRequest(number):
                self._requests[number] = asyncio.create_task(self._take_turn(message))
            case CancelRequest(number) | ReleaseLease(number):
                if task := self._requests.pop(number, None):
                    task.cancel()
            case Quiescence(received):
                if received == self._sent:
                    self._wait.close()
                    self._is_waiting = False
            case EpisodeEnded(number):
                if (active := self._attempts.get(number)) and not active.ended.done():
                    active.ended.set_result(None)
            case EpisodeRewarded(number, episode, usage):
                self.usage = usage
                if active := self._attempts.pop(number, None):
                    active.set_episode(replace(episode, task=active.attempt.task))
            case AttemptFailed(number, fault):
                if active := self._attempts.pop(number, None):
                    active.set_error(fault.to_error("a worker process"))
            case AttemptsCanceled(usage):
                self.usage = usage
                self._attempts.clear()
                self._not_canceling.set()
            case WorkerReady(pid, agents, usage):
                self.pid, self.agents, self.usage, self.ready = pid, agents, usage, True
                if not self._started.done():  # done if the run ended during the start
                    self._started.set_result(None)
            case RemoteError():
                if not self._started.done():
                    self._started.set_exception(message.to_error("a worker process"))

    async def _answer_request(self, request: SampleRequest | ChooseRequest) -> None:
        try:
            outcome: Any = await request.run_on(self.engine, self._send)
        except EpisodeFailedError as failure:
            outcome = RequestFailure(failure.status, failure.reason)
        except Exception as error:  # noqa: BLE001  error of the engine: no attempt can continue
            self._fail_attempts(error)
            return
        finally:
            self._requests.pop(request.number, None)
        try:
            self._send_work(RequestResult(request.number, outcome))
        except MessageError as error:  # the engine's result is not plain data
            self._fail_attempts(error)

    def _fail_attempts(self, error: Exception) -> None:
        for active in self._attempts.values():
            active.set_error(error)

    def _send(self, message: object) -> None:
        with suppress(RuntimeError):  # the event loop is closed after the run
            self._loop.call_soon_threadsafe(self._stream.send, message)

    async def _hold_slot(self, request: LeaseRequest) -> None:
        """Hold a slot for the worker; cancelled when the worker returns the slot or ends."""
        async with self.leases.slot(request.name, request.count):
            self._stream.send(LeaseGranted(request.number))
            await asyncio.Event().wait()

    async def _take_turn(self, request: TurnRequest) -> None:
        await self.leases.turn(request.name, request.per_minute)
        self._stream.send(LeaseGranted(request.number))

    def _send_work(self, message: PlayAttempt | RequestResult) -> None:
        self._sent += 1
        if not self._is_waiting:
            self._wait.enter_context(self.engine.external_wait())
            self._is_waiting = True
        self._stream.send(message)

    def _handle_exit(self, outcome: str) -> None:
        """Fail the remaining attempts after the process ended."""
        is_hung = self._silent_seconds > self.timeout_seconds
        reason = f"the worker process that played it {outcome}"
        if self._is_corrupt:
            reason = "the worker process that played it sent what cannot be read, and was ended"
        if is_hung:
            reason = (
                f"the worker process that played it did not answer for over {self.timeout_seconds:g} s, and was ended"
            )
        for task in self._requests.values():
            task.cancel()
        attempt_count = len(self._attempts)
        for active in self._attempts.values():
            active.set_error(WorkerLostError("timed_out" if is_hung else "failed", reason, attempt_count))
        self._attempts.clear()
        self._not_canceling.set()
        if not self._started.done():
            self._started.set_exception(RunError(f"a worker process {outcome} before it had begun"))
        self.exited.set_result(outcome)
        self._stream.close()
        self._wait.close()  # runs code of the engine, which may fail
