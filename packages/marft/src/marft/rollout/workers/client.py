"""Sampler client of a worker process: forwards requests to the run's engine and returns the results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, Sampling, Versions
from marft.inference.stillness import Stillness
from marft.rollout.workers.messages import (
    Answer,
    Choose,
    Failure,
    Forget,
    GiveBack,
    Granted,
    Lease,
    Sample,
    Sampled,
    Turn,
)


class Client:
    """:class:`~marft.agents.engine.Sampler` for an engine in another process.

    Args:
        send: function that sends a message to the run's process.
        in_messages: policies that receive chat messages; other policies receive only token ids.
    """

    def __init__(self, send: Callable[[object], None], in_messages: Collection[str]) -> None:
        self.stillness = Stillness()
        self._send, self._in_messages = send, in_messages
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._listeners: dict[int, Callable[[int], None]] = {}

    async def sample(self, policy: str, prompt: Prompt, sampling: Sampling, key: ActionKey) -> Completion:
        """Sample one action with the run's engine.

        Raises:
            EpisodeFailedError: the engine cannot sample.
        """
        number, listener = next(self._numbers), sampling.listener
        there, prompt = replace(sampling, listener=None), self._trimmed(policy, prompt)
        if listener:
            self._listeners[number] = listener
        try:
            completion: Completion = await self._asked(Sample(number, policy, prompt, there, key, listener is not None))
            return completion
        finally:
            self._listeners.pop(number, None)

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: Sampling, key: ActionKey
    ) -> tuple[Choice, Versions]:
        """Choose one option with the run's engine.

        Raises:
            EpisodeFailedError: the engine cannot choose.
        """
        number = next(self._numbers)
        asked = Choose(number, policy, self._trimmed(policy, prompt), tuple(options), sampling, key)
        choice, versions = await self._asked(asked)
        return replace(choice, options=tuple(options)), versions

    def external_wait(self) -> AbstractContextManager[None]:
        """Return a context manager that keeps the engine waiting for this process.

        Inside, more requests may follow, so this process does not report quiescence to the run.
        """
        return self.stillness.external_wait()

    @asynccontextmanager
    async def slot(self, name: str, count: int) -> AsyncIterator[None]:
        """Hold a slot, out of ``count`` slots that the run's processes share."""
        async with self._granted(Lease(next(self._numbers), name, count)):
            yield

    async def turn(self, name: str, per_minute: float) -> None:
        """Wait for a turn within the rate limit shared by all processes of the run.

        Args:
            name: name of the limit.
            per_minute: maximum turns per minute.
        """
        async with self._granted(Turn(next(self._numbers), name, per_minute)):
            return

    @asynccontextmanager
    async def _granted(self, asked: Lease | Turn) -> AsyncIterator[None]:
        granted = self._waiting[asked.number] = asyncio.get_running_loop().create_future()
        self._send(asked)
        try:
            await granted
            yield
        finally:
            del self._waiting[asked.number]
            self._send(GiveBack(asked.number))

    def hear(self, answer: Answer | Granted | Sampled) -> None:
        """Deliver a result to its waiting coroutine, or a token to its listener."""
        if isinstance(answer, Sampled):
            if listener := self._listeners.get(answer.number):
                listener(answer.token)
            return
        future = self._waiting.get(answer.number)
        if future is None or future.done():
            return
        if isinstance(answer, Granted):
            future.set_result(None)
        elif isinstance(answer.outcome, Failure):
            future.set_exception(answer.outcome.error())
        else:
            future.set_result(answer.outcome)

    async def _asked(self, request: Sample | Choose) -> Any:
        future = self._waiting[request.number] = asyncio.get_running_loop().create_future()
        self._send(request)
        self.stillness.stir()
        try:
            return await future
        except asyncio.CancelledError:
            self._send(Forget(request.number))
            raise
        finally:
            del self._waiting[request.number]

    def _trimmed(self, policy: str, prompt: Prompt) -> Prompt:
        return prompt if policy in self._in_messages else replace(prompt, chat=(), tools=())
