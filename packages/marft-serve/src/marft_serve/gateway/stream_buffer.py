"""Buffer between actions in progress and a streamed response, on the server's event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TypeVar

from marft.agents.chat import Reply
from marft.agents.streaming import ActionStart, TextStream, TokenStream
from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.protocol.base import (
    Event,
    Metadata,
    ParsedRequest,
    Protocol,
    Stream,
    format_event,
    get_reply_text,
)

T = TypeVar("T")
TextDelta = tuple[int, str, str]  # action's index in the response, more reasoning, more text


class StreamBuffer:
    """Buffer of text from actions in progress; call :meth:`close` at the end."""

    def __init__(self) -> None:
        self._loop, self._updated = asyncio.get_running_loop(), asyncio.Event()
        self._live_actions: Sequence[TokenStream] = ()
        self._texts: dict[int, TextStream] = {}  # by action index, for actions with text
        self._read_counts: dict[int, int] = {}  # number of tokens read so far, by action index
        self._notes: deque[Mapping[str, str]] = deque()
        self._subscriptions = ExitStack()

    @property
    def started_actions(self) -> list[ActionStart]:
        """Actions already started."""
        return [live.start for live in self._live_actions if live.start]

    def subscribe(self, live_actions: Sequence[TokenStream]) -> None:
        """Subscribe to actions, including their text so far; thread-safe."""
        self._live_actions = live_actions
        for live in live_actions:
            self._subscriptions.enter_context(live.subscribe(self._notify))
        self._notify()

    def add_note(self, note: Mapping[str, str]) -> None:
        """Add a note to the stream; thread-safe."""
        self._notes.append(note)
        self._notify()

    async def iter_updates(self, answer: asyncio.Future[T]) -> AsyncIterator[TextDelta | Mapping[str, str]]:
        """Yield notes and new text from the actions until the answer is complete."""
        answer.add_done_callback(self._on_answer_done)
        while not answer.done():
            await self._updated.wait()
            self._updated.clear()
            while self._notes:
                yield self._notes.popleft()
            for number, live in enumerate(self._live_actions):
                reasoning, text = self._read_new_text(number, live)
                if reasoning or text:
                    yield number, reasoning, text
        while self._notes:
            yield self._notes.popleft()

    def iter_remaining(self, replies: Sequence[Reply]) -> Iterator[TextDelta]:
        """Yield text from complete replies that is not yet streamed.

        Raises:
            ValueError: the streamed text differs from the reply.
        """
        for number, reply in enumerate(replies):
            text = self._texts.get(number)
            yield (
                number,
                *(
                    text.finish(reply.thought, get_reply_text(reply))
                    if text
                    else (reply.thought, get_reply_text(reply))
                ),
            )

    def close(self) -> None:
        """Unsubscribe from the actions."""
        self._subscriptions.close()

    def _read_new_text(self, number: int, live: TokenStream) -> tuple[str, str]:
        read_count, count = self._read_counts.get(number, 0), len(live.tokens)
        if count == read_count or live.make_text_stream is None:
            return "", ""
        if number not in self._texts:
            self._texts[number] = live.make_text_stream()
        self._read_counts[number] = count
        return self._texts[number].add_tokens(live.tokens[read_count:count])

    def _on_answer_done(self, answer: asyncio.Future[T]) -> None:
        self._updated.set()
        if not answer.cancelled():
            answer.exception()  # marks the exception as retrieved even if the client has left

    def _notify(self) -> None:
        with suppress(RuntimeError):  # the server's event loop has ended
            self._loop.call_soon_threadsafe(self._updated.set)


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """Streamed response for actions in progress.

    Args:
        protocol: wire protocol of the client.
        request: the request.
        buffer: buffer with the text of the actions.
        describe: function from the started actions to the response's description of them.
        format_note: function from a note to its text in the stream.
        on_complete: callback with the complete replies, after all of their events are written and before the end is
            sent.
    """

    protocol: Protocol
    request: ParsedRequest
    buffer: StreamBuffer
    describe: Callable[[Sequence[ActionStart]], Metadata]
    format_note: Callable[[Mapping[str, str]], str] = str
    on_complete: Callable[[Sequence[Reply]], None] = lambda _: None

    async def iter_texts(self, answer: asyncio.Future[Sequence[Reply]]) -> AsyncGenerator[str]:
        """Yield the texts of the stream; closing the generator cancels the answer.

        Raises:
            RequestError: the request failed, or the response cannot represent the answer.
        """
        try:
            async for text in self._iter_texts(answer):
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
            self.buffer.close()

    async def _iter_texts(self, answer: asyncio.Future[Sequence[Reply]]) -> AsyncIterator[str]:
        stream: Stream | None = None
        async for update in self.buffer.iter_updates(answer):
            if isinstance(update, Mapping):
                yield self.format_note(update)
                continue
            if stream is None:
                started_actions = self.buffer.started_actions
                stream = self.protocol.stream_type(self.request, started_actions[0], self.describe(started_actions))
                for event in stream.begin():
                    yield format_event(event)
            for event in stream.emit_delta(*update):
                yield format_event(event)
        replies = await answer
        started_actions = [ActionStart.from_action(reply.action) for reply in replies]
        last = list[Event]()
        if stream is None:
            stream = self.protocol.stream_type(self.request, started_actions[0], self.describe(started_actions))
            last += stream.begin()
        for piece in self.buffer.iter_remaining(replies):
            last += stream.emit_delta(*piece)
        texts = [format_event(event) for event in [*last, *stream.end(replies, self.describe(started_actions))]]
        self.on_complete(replies)
        for text in texts:
            yield text
