"""Who samples, as a worker process sees it: requests go to the run's engine, and their answers come back."""

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
    """A :class:`~marft.agents.engine.Sampler` whose engine is in another process.

    Args:
        send: sends a message there.
        in_messages: policies that are asked in messages; all others are asked in token ids alone.
    """

    def __init__(self, send: Callable[[object], None], in_messages: Collection[str]) -> None:
        self.stillness = Stillness()
        self._send, self._in_messages = send, in_messages
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._listeners: dict[int, Callable[[int], None]] = {}

    async def sample(self, policy: str, prompt: Prompt, sampling: Sampling, key: ActionKey) -> Completion:
        """Have the run's engine sample one action; raises ``EpisodeFailedError`` where that does."""
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
        """Have the run's engine choose; raises ``EpisodeFailedError`` where that does."""
        number = next(self._numbers)
        asked = Choose(number, policy, self._trimmed(policy, prompt), tuple(options), sampling, key)
        choice, versions = await self._asked(asked)
        return replace(choice, options=tuple(options)), versions

    def external_wait(self) -> AbstractContextManager[None]:
        """While it is held, this process may ask for more, and the run's engine is not told otherwise."""
        return self.stillness.external_wait()

    @asynccontextmanager
    async def slot(self, name: str, count: int) -> AsyncIterator[None]:
        """One of ``count`` that the run has in all its processes."""
        async with self._granted(Lease(next(self._numbers), name, count)):
            yield

    async def turn(self, name: str, per_minute: float) -> None:
        """Wait for the next of ``per_minute`` that the run has in all its processes."""
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
        """Hand an answer to whoever waits for it, a token to whoever listens."""
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
