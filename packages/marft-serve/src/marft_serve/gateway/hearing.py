"""Buffer between actions in progress and a streamed response, on the server's event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from marft.agents.chat import Reply
from marft.agents.live import Begun, Live, LiveText
from marft_serve.gateway.protocol.exchange import Asked, Event, Protocol, Stream, said_by
from marft_serve.gateway.refusals import RequestError

T = TypeVar("T")
Piece = tuple[int, str, str]  # action's index in the response, more reasoning, more text


class Hearing:
    """Buffer of text from actions in progress; call :meth:`close` at the end."""

    def __init__(self) -> None:
        self._loop, self._stirred = asyncio.get_running_loop(), asyncio.Event()
        self._lives: Sequence[Live] = ()
        self._texts: dict[int, LiveText] = {}  # by action index, for actions with text
        self._taken: dict[int, int] = {}  # number of tokens read so far, by action index
        self._notes: deque[Mapping[str, str]] = deque()
        self._watched = ExitStack()

    @property
    def begun(self) -> list[Begun]:
        """Actions already started."""
        return [live.begun for live in self._lives if live.begun]

    def hear(self, lives: Sequence[Live]) -> None:
        """Subscribe to actions, including their text so far; thread-safe."""
        self._lives = lives
        for live in lives:
            self._watched.enter_context(live.watched(self._stir))
        self._stir()

    def note(self, said: Mapping[str, str]) -> None:
        """Add a note to the stream; thread-safe."""
        self._notes.append(said)
        self._stir()

    async def told(self, answer: asyncio.Future[T]) -> AsyncIterator[Piece | Mapping[str, str]]:
        """Yield notes and new text from the actions until the answer is complete."""
        answer.add_done_callback(self._answered)
        while not answer.done():
            await self._stirred.wait()
            self._stirred.clear()
            while self._notes:
                yield self._notes.popleft()
            for number, live in enumerate(self._lives):
                thought, text = self._more(number, live)
                if thought or text:
                    yield number, thought, text
        while self._notes:
            yield self._notes.popleft()

    def rest(self, replies: Sequence[Reply]) -> Iterator[Piece]:
        """Yield text from complete replies that is not yet streamed.

        Raises:
            ValueError: the streamed text differs from the reply.
        """
        for number, reply in enumerate(replies):
            text = self._texts.get(number)
            yield number, *(text.rest(reply.thought, said_by(reply)) if text else (reply.thought, said_by(reply)))

    def close(self) -> None:
        """Unsubscribe from the actions."""
        self._watched.close()

    def _more(self, number: int, live: Live) -> tuple[str, str]:
        taken, count = self._taken.get(number, 0), len(live.tokens)
        if count == taken or live.text is None:
            return "", ""
        if number not in self._texts:
            self._texts[number] = live.text()
        self._taken[number] = count
        return self._texts[number].take(live.tokens[taken:count])

    def _answered(self, answer: asyncio.Future[T]) -> None:
        self._stirred.set()
        if not answer.cancelled():
            answer.exception()  # marks the exception as retrieved even if the client has left

    def _stir(self) -> None:
        with suppress(RuntimeError):  # the server's event loop has ended
            self._loop.call_soon_threadsafe(self._stirred.set)


@dataclass(frozen=True, slots=True)
class Telling:
    """Streamed response for actions in progress.

    Args:
        protocol: wire protocol of the client.
        asked: the request.
        hearing: buffer with the text of the actions.
        about: function from the started actions to the response's description of them.
        write: function from an event to its text in the stream.
        note: function from a note to its text in the stream.
        answered: callback with the complete replies, after all of their events are written and before the end is
            sent.
    """

    protocol: Protocol
    asked: Asked
    hearing: Hearing
    about: Callable[[Sequence[Begun]], Mapping[str, Any]]
    write: Callable[[Event], str]
    note: Callable[[Mapping[str, str]], str] = str
    answered: Callable[[Sequence[Reply]], None] = lambda _: None

    async def texts(self, answer: asyncio.Future[Sequence[Reply]]) -> AsyncGenerator[str]:
        """Yield the texts of the stream; closing the generator cancels the answer.

        Raises:
            RequestError: the request failed, or the response cannot represent the answer.
        """
        try:
            async for text in self._texts(answer):
                yield text
        except (RequestError, asyncio.CancelledError):
            raise
        except Exception as error:  # a retry would be a new action and fail in the same way
            await asyncio.wait([answer])
            if not answer.cancelled() and answer.exception() is error:
                raise
            raise RequestError(500, "no_response", "the action is recorded, and no response can say it") from error
        finally:
            answer.cancel()
            self.hearing.close()

    async def _texts(self, answer: asyncio.Future[Sequence[Reply]]) -> AsyncIterator[str]:
        stream: Stream | None = None
        async for heard in self.hearing.told(answer):
            if isinstance(heard, Mapping):
                yield self.note(heard)
                continue
            if stream is None:
                begun = self.hearing.begun
                stream = self.protocol.stream(self.asked, begun[0], self.about(begun))
                for event in stream.begin():
                    yield self.write(event)
            for event in stream.say(*heard):
                yield self.write(event)
        replies = await answer
        begun = [Begun.of(reply.action) for reply in replies]
        last = list[Event]()
        if stream is None:
            stream = self.protocol.stream(self.asked, begun[0], self.about(begun))
            last += stream.begin()
        for piece in self.hearing.rest(replies):
            last += stream.say(*piece)
        texts = [self.write(event) for event in [*last, *stream.end(replies, self.about(begun))]]
        self.answered(replies)
        for text in texts:
            yield text
