"""Shared HTTP code of the servers: request bodies, event streams and error responses."""

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
LARGE = 2**15  # bytes; larger bodies are parsed on a thread
NOT_SERVED = {  # common paths of other APIs, with the error message for each
    "completions": "agents are asked in chats, at chat/completions, responses or messages",
    "embeddings": "agents write text, and embed none",
}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits on a request body.

    Args:
        body_bytes: maximum size in bytes.
        body_seconds: timeout for the whole body, in seconds.
    """

    body_bytes: int = 4 * 2**20
    body_seconds: float = 30.0


async def body_of(request: Request, bounds: Bounds) -> bytes:
    """Read a request's body.

    Raises:
        RequestError: the body is too large, or did not arrive within the timeout.
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
    """Parse a request, on a thread if the body is large.

    Raises:
        RequestError: the request is invalid.
    """
    if len(body) < LARGE:
        return protocol.read(body, earlier)
    return await asyncio.to_thread(protocol.read, body, earlier)


def not_served(path: str, served: str) -> RequestError:
    """Return the error for an unsupported path below a valid address.

    Args:
        path: the path after ``v1/``.
        served: list of the supported paths, for the message.
    """
    why = NOT_SERVED.get(path.strip("/"), "there is nothing at this address")
    named = storable(path)[:100] or "the address of an agent alone"
    return RequestError(404, "not_found", f"{named} is not served: {why}; served are {served}")


def protocol_at(path: str) -> Protocol:
    """Return the protocol for responses at a path."""
    return Messages() if "/messages" in path else ChatCompletions()


def unexpected(error: Exception) -> RequestError:
    """Log an internal error and return a generic error for the client."""
    logging.getLogger("marft").error("a request could not be answered", exc_info=error)
    return RequestError(500, "internal_error", "the server could not answer this request; its log says why")


def in_words(
    protocol: Protocol, answer: Callable[[Request], Awaitable[Response]],
    headers_of: Callable[[RequestError], dict[str, str]],
) -> Callable[[Request], Awaitable[Response]]:  # fmt: skip
    """Return an endpoint with every error, including internal errors, in a protocol's format."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except RequestError as error:
            told = error
        except Exception as error:  # noqa: BLE001  internal error
            told = unexpected(error)
        return JSONResponse(protocol.error(told), told.status, headers_of(told))

    return endpoint


def written(event: Event) -> str:
    """Format a server-sent event."""
    name, said = event
    data = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False, allow_nan=False)
    return (f"event: {name}\n" if name else "") + f"data: {data}\n\n"


async def gone(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, answer: Awaitable[T]) -> T | None:
    """Return an awaitable's result; cancel it and return None if the client disconnects first."""
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
    """Response with a stream of texts; closes the generator at the end or on disconnect.

    An error between two texts is sent in the protocol's format.

    Args:
        protocol: protocol for errors.
        texts: generator of the texts.
        headers: headers of the response.
        first: a text already taken from the generator.
        ended: callback at the end. It also runs if the generator was never started.
    """

    def __init__(
        self, protocol: Protocol, texts: AsyncGenerator[str], headers: Mapping[str, str], first: str = "",
        ended: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self._texts, self._ended = texts, ended
        self._sent = self._with_errors(protocol, first)
        super().__init__(self._sent, headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the texts.

        A client may disconnect while a text is sent. Then only this method closes the generators.
        """
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
                await asyncio.sleep(0)  # let other tasks run
        except Exception as error:  # noqa: BLE001  internal unless a RequestError
            refusal = error if isinstance(error, RequestError) else unexpected(error)
            yield written(("" if isinstance(protocol, ChatCompletions) else "error", protocol.error(refusal)))


def no_address(unknown: Callable[[], RequestError]) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return the handler of routing errors: unknown address or method not allowed.

    Args:
        unknown: function that returns the error for an unknown address.
    """

    async def said(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        other = RequestError(error.status_code, "not_allowed", error.detail)
        refusal = unknown() if error.status_code == 404 else other
        body: Mapping[str, Any] = protocol_at(request.url.path).error(refusal)
        return JSONResponse(body, refusal.status, error.headers)

    return said
