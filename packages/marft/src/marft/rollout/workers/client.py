"""Sampler client of a worker process, and the slots and rate limits that it shares with the run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from marft.agents.loop_threads import LoopThreadPool
from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, SamplingParams, VersionRange
from marft.config.endpoint import EndpointSettings
from marft.inference.quiescence import QuiescenceBarrier
from marft.rollout.workers.messages import (
    CancelRequest,
    ChooseRequest,
    LeaseGranted,
    LeaseRequest,
    ReleaseLease,
    RequestFailure,
    RequestResult,
    SampledToken,
    SampleRequest,
    TurnRequest,
)


class SamplerClient:
    """:class:`~marft.config.interfaces.engine.Sampler` for an engine in another process.

    Args:
        send: function that sends a message to the run's process.
        in_messages: policies that receive chat messages; other policies receive only token ids.
    """

    def __init__(self, send: Callable[[object], None], in_messages: Collection[str]) -> None:
        self.barrier = QuiescenceBarrier()
        self._send, self._in_messages = send, in_messages
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._listeners: dict[int, Callable[[int], None]] = {}

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        """Sample one action with the run's engine.

        Raises:
            EpisodeFailedError: the engine cannot sample.
        """
        number, listener = next(self._numbers), sampling.on_token
        remote_sampling, prompt = replace(sampling, on_token=None), self._trim_prompt(policy, prompt)
        if listener:
            self._listeners[number] = listener
        try:
            completion: Completion = await self._send_request(
                SampleRequest(number, policy, prompt, remote_sampling, key, listener is not None)
            )
            return completion
        finally:
            self._listeners.pop(number, None)

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: SamplingParams, key: ActionKey
    ) -> tuple[Choice, VersionRange]:
        """Choose one option with the run's engine.

        Raises:
            EpisodeFailedError: the engine cannot choose.
        """
        number = next(self._numbers)
        request = ChooseRequest(number, policy, self._trim_prompt(policy, prompt), tuple(options), sampling, key)
        choice, versions = await self._send_request(request)
        return replace(choice, options=tuple(options)), versions

    def external_wait(self) -> AbstractContextManager[None]:
        """Return a context manager that keeps the engine waiting for this process.

        Inside, more requests may follow, so this process does not report quiescence to the run.
        """
        return self.barrier.external_wait()

    @asynccontextmanager
    async def slot(self, name: str, count: int) -> AsyncIterator[None]:
        """Hold a slot, out of ``count`` slots that the run's processes share."""
        async with self._acquire(LeaseRequest(next(self._numbers), name, count)):
            yield

    async def turn(self, name: str, per_minute: float) -> None:
        """Wait for a turn within the rate limit shared by all processes of the run.

        Args:
            name: name of the limit.
            per_minute: maximum turns per minute.
        """
        async with self._acquire(TurnRequest(next(self._numbers), name, per_minute)):
            return

    @asynccontextmanager
    async def _acquire(self, request: LeaseRequest | TurnRequest) -> AsyncIterator[None]:
        future = self._waiting[request.number] = asyncio.get_running_loop().create_future()
        self._send(request)
        try:
            await future
            yield
        finally:
            del self._waiting[request.number]
            self._send(ReleaseLease(request.number))

    def deliver(self, message: RequestResult | LeaseGranted | SampledToken) -> None:
        """Deliver a result to its waiting coroutine, or a token to its listener."""
        if isinstance(message, SampledToken):
            if listener := self._listeners.get(message.number):
                listener(message.token)
            return
        future = self._waiting.get(message.number)
        if future is None or future.done():
            return
        if isinstance(message, LeaseGranted):
            future.set_result(None)
        elif isinstance(message.outcome, RequestFailure):
            future.set_exception(message.outcome.to_error())
        else:
            future.set_result(message.outcome)

    async def _send_request(self, request: SampleRequest | ChooseRequest) -> Any:
        future = self._waiting[request.number] = asyncio.get_running_loop().create_future()
        self._send(request)
        self.barrier.notify_activity()
        try:
            return await future
        except asyncio.CancelledError:
            self._send(CancelRequest(request.number))
            raise
        finally:
            del self._waiting[request.number]

    def _trim_prompt(self, policy: str, prompt: Prompt) -> Prompt:
        return prompt if policy in self._in_messages else replace(prompt, chat=(), tools=())


class LeasedThreadPool(LoopThreadPool):
    """Session threads in a worker process, with slots shared across the run's workers."""

    def __init__(self, client: SamplerClient) -> None:
        super().__init__()
        self._client = client

    def slots(self, name: str, count: int) -> AbstractAsyncContextManager[object]:
        """Return a context manager for a slot, out of ``count`` slots shared across the run's episodes."""
        return self._client.slot(name, count)


class LeasedLimits:
    """Endpoint limits, shared by the run's processes and usable on any event loop.

    Args:
        client: client of the worker process.
        loop: event loop of the client.
        name: name of the endpoint, unique within the run.
        settings: settings of the endpoint.
    """

    def __init__(
        self, client: SamplerClient, loop: asyncio.AbstractEventLoop, name: str, settings: EndpointSettings
    ) -> None:
        self._client, self._loop, self._name, self._settings = client, loop, name, settings

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot for one concurrent request."""
        acquired = Future[None]()
        hold_task = asyncio.run_coroutine_threadsafe(self._hold(acquired), self._loop)
        try:
            await asyncio.wrap_future(acquired)
            yield
        finally:
            hold_task.cancel()

    async def turn(self) -> None:
        """Wait for a turn within ``requests_per_minute``; return at once without such a limit."""
        if per_minute := self._settings.requests_per_minute:
            turn_task = asyncio.run_coroutine_threadsafe(self._client.turn(self._name, per_minute), self._loop)
            await asyncio.wrap_future(turn_task)

    async def _hold(self, acquired: Future[None]) -> None:
        async with self._client.slot(self._name, self._settings.max_concurrent_requests):
            if not acquired.done():  # the caller was cancelled, and this task will be too
                acquired.set_result(None)
            await asyncio.Event().wait()
