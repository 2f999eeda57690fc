"""What servers of ours have in common: bodies that end, streams of events, words for an address that is none."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from marft.common.texts import storable
from marft_serve.gateway.protocol.anthropic import Messages
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.protocol.exchange import NOTHING, Asked, Event, Protocol
from marft_serve.gateway.protocol.reading import Said
from marft_serve.gateway.refusals import RequestError

T = TypeVar("T")
LARGE = 2**15  # bytes of a body that is read on a thread
NOT_SERVED = {  # what clients ask for at addresses that others have, and is said of it
    "completions": "agents are asked in chats, at chat/completions, responses or messages",
    "embeddings": "agents write text, and embed none",
}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request may take of a server.

    Args:
        body_bytes: of its body.
        body_seconds: for all of that to come.
    """

    body_bytes: int = 4 * 2**20
    body_seconds: float = 30.0


async def body_of(request: Request, bounds: Bounds) -> bytes:
    """All of a request's body.

    Raises:
        RequestError: it is too large, or comes too slowly.
    """
    most, body = bounds.body_bytes, bytearray()
    too_large = RequestError(413, "request_too_large", f"a request has at most {most} bytes")
    with suppress(ValueError):
        if int(request.headers.get("content-length", "0")) > most:
            raise too_large
    try:
        async with asyncio.timeout(bounds.body_seconds):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        seconds = f"{bounds.body_seconds:g} s"
        raise RequestError(408, "request_timeout", f"the body did not come in {seconds}") from None
    except ClientDisconnect:
        raise RequestError(400, "invalid_value", "the body ended before it was whole") from None
    return bytes(body)


async def asked_by(protocol: Protocol, body: bytes, earlier: Mapping[str, tuple[Said, ...]] = NOTHING) -> Asked:
    """A request, read on a thread where that takes long.

    Raises:
        RequestError: it cannot be answered.
    """
    if len(body) < LARGE:
        return protocol.read(body, earlier)
    return await asyncio.to_thread(protocol.read, body, earlier)


def not_served(path: str, served: str) -> RequestError:
    """What is said of an address under one that answers.

    Args:
        path: beyond ``v1/``.
    """
    why = NOT_SERVED.get(path.strip("/"), "there is nothing at this address")
    named = storable(path)[:100] or "the address of an agent alone"
    return RequestError(404, "not_found", f"{named} is not served: {why}; served are {served}")


def protocol_at(path: str) -> Protocol:
    """The protocol in whose words an address is answered."""
    return Messages() if "/messages" in path else ChatCompletions()


def unexpected(error: Exception) -> RequestError:
    """What a client is told of a fault of ours; the log has all of it."""
    logging.getLogger("marft").error("a request could not be answered", exc_info=error)
    return RequestError(500, "internal_error", "the server could not answer this request; its log says why")


def in_words(
    protocol: Protocol, answer: Callable[[Request], Awaitable[Response]],
    headers_of: Callable[[RequestError], dict[str, str]],
) -> Callable[[Request], Awaitable[Response]]:  # fmt: skip
    """Return an endpoint whose errors, of ours too, are answered in a protocol's words."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except RequestError as error:
            told = error
        except Exception as error:  # noqa: BLE001  of ours
            told = unexpected(error)
        return JSONResponse(protocol.error(told), told.status, headers_of(told))

    return endpoint


def written(event: Event) -> str:
    """An event as a stream has it."""
    name, said = event
    data = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False, allow_nan=False)
    return (f"event: {name}\n" if name else "") + f"data: {data}\n\n"


async def gone(request: Request) -> None:
    """Until the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, answer: Awaitable[T]) -> T | None:
    """What is waited for; None where the client has gone before: then nobody waits for it any more."""
    answering = asyncio.ensure_future(answer)
    watching = asyncio.ensure_future(gone(request))
    try:
        await asyncio.wait([answering, watching], return_when=asyncio.FIRST_COMPLETED)
        return await answering if answering.done() else None
    finally:
        for task in (answering, watching):
            task.cancel()
        await asyncio.gather(answering, watching, return_exceptions=True)


class EventStream(StreamingResponse):
    """A response that is sent text by text. When it ends, or its client leaves, the generator of the texts is closed.

    An error between two texts is sent as the protocol has it.

    Args:
        first: a text that was taken from the generator already.
        ended: is called at the end. A generator that was never started knows nothing of it.
    """

    def __init__(
        self, protocol: Protocol, texts: AsyncGenerator[str], headers: Mapping[str, str], first: str = "",
        ended: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self._texts, self._ended = texts, ended
        self._sent = self._with_errors(protocol, first)
        super().__init__(self._sent, headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the texts. A client may leave while one is sent: then nothing but this closes the generators."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()
            await self._sent.aclose()
            await self._texts.aclose()

    async def _with_errors(self, protocol: Protocol, first: str) -> AsyncGenerator[str]:
        try:
            if first:
                yield first
            async for text in self._texts:
                yield text
                await asyncio.sleep(0)  # a look at everything else
        except Exception as error:  # noqa: BLE001  of ours, where it is no refusal
            refusal = error if isinstance(error, RequestError) else unexpected(error)
            yield written(("" if isinstance(protocol, ChatCompletions) else "error", protocol.error(refusal)))


def no_address(unknown: Callable[[], RequestError]) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Says that an address is nobody's, or not asked so.

    Args:
        unknown: what is said of the first.
    """

    async def said(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        other = RequestError(error.status_code, "not_allowed", error.detail)
        refusal = unknown() if error.status_code == 404 else other
        body: Mapping[str, Any] = protocol_at(request.url.path).error(refusal)
        return JSONResponse(body, refusal.status, error.headers)

    return said
