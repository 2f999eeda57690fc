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

from marft.common.texts import replace_surrogates
from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.protocol.anthropic import Messages
from marft_serve.gateway.protocol.base import NO_CONVERSATIONS, Event, ParsedRequest, Protocol
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.protocol.parsing import ClientMessage

T = TypeVar("T")
LARGE_BODY_BYTES = 2**15  # bytes; larger bodies are parsed on a thread
UNSUPPORTED_PATHS = {  # common paths of other APIs, with the error message for each
    "completions": "agents are asked in chats, at chat/completions, responses or messages",
    "embeddings": "agents write text, and embed none",
}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits on a request body.

    Args:
        body_bytes: maximum size in bytes.
        body_seconds: timeout for the whole body, in seconds.
    """

    body_bytes: int = 4 * 2**20
    body_seconds: float = 30.0


async def read_body(request: Request, limits: BodyLimits) -> bytes:
    """Read a request's body.

    Raises:
        RequestError: the body is too large, or did not arrive within the timeout.
    """
    max_bytes, body = limits.body_bytes, bytearray()
    too_large = RequestError(413, "request_too_large", f"a request has at most {max_bytes} bytes")
    with suppress(ValueError):
        if int(request.headers.get("content-length", "0")) > max_bytes:
            raise too_large
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        seconds = f"{limits.body_seconds:g} s"
        raise RequestError(408, "request_timeout", f"the body did not come in {seconds}") from None
    except ClientDisconnect:
        raise RequestError(400, "invalid_value", "the body ended before it was whole") from None
    return bytes(body)


async def parse_request(
    protocol: Protocol, body: bytes, earlier: Mapping[str, tuple[ClientMessage, ...]] = NO_CONVERSATIONS
) -> ParsedRequest:
    """Parse a request, on a thread if the body is large.

    Raises:
        RequestError: the request is invalid.
    """
    if len(body) < LARGE_BODY_BYTES:
        return protocol.parse_request(body, earlier)
    return await asyncio.to_thread(protocol.parse_request, body, earlier)


def unsupported_path_error(path: str, supported: str) -> RequestError:
    """Return the error for an unsupported path below a valid address.

    Args:
        path: the path after ``v1/``.
        supported: list of the supported paths, for the message.
    """
    reason = UNSUPPORTED_PATHS.get(path.strip("/"), "there is nothing at this address")
    path_name = replace_surrogates(path)[:100] or "the address of an agent alone"
    return RequestError(404, "not_found", f"{path_name} is not served: {reason}; served are {supported}")


def get_protocol(path: str) -> Protocol:
    """Return the protocol for responses at a path."""
    return Messages() if "/messages" in path else ChatCompletions()


def internal_error(error: Exception) -> RequestError:
    """Log an internal error and return a generic error for the client."""
    logging.getLogger("marft").error("a request could not be answered", exc_info=error)
    return RequestError(500, "internal_error", "the server could not answer this request; its log says why")


def build_endpoint(
    protocol: Protocol,
    answer: Callable[[Request], Awaitable[Response]],
    get_headers: Callable[[RequestError], dict[str, str]],
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint with every error, including internal errors, in a protocol's format."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except RequestError as error:
            request_error = error
        except Exception as error:  # noqa: BLE001  internal error
            request_error = internal_error(error)
        return JSONResponse(protocol.build_error(request_error), request_error.status, get_headers(request_error))

    return endpoint


def format_event(event: Event) -> str:
    """Format a server-sent event."""
    name, payload = event
    data = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False, allow_nan=False)
    return (f"event: {name}\n" if name else "") + f"data: {data}\n\n"


async def wait_for_disconnect(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def cancel_on_disconnect(request: Request, answer: Awaitable[T]) -> T | None:
    """Return an awaitable's result; cancel it and return None if the client disconnects first."""
    answer_task = asyncio.ensure_future(answer)
    disconnect_task = asyncio.ensure_future(wait_for_disconnect(request))
    try:
        await asyncio.wait([answer_task, disconnect_task], return_when=asyncio.FIRST_COMPLETED)
        return await answer_task if answer_task.done() else None
    finally:
        for task in (answer_task, disconnect_task):
            task.cancel()
        await asyncio.gather(answer_task, disconnect_task, return_exceptions=True)


class EventStream(StreamingResponse):
    """Response with a stream of texts; closes the generator at the end or on disconnect.

    An error between two texts is sent in the protocol's format.

    Args:
        protocol: protocol for errors.
        texts: generator of the texts.
        headers: headers of the response.
        first: a text already taken from the generator.
        on_end: callback at the end. It also runs if the generator was never started.
    """

    def __init__(
        self,
        protocol: Protocol,
        texts: AsyncGenerator[str],
        headers: Mapping[str, str],
        first: str = "",
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self._texts, self._on_end = texts, on_end
        self._stream = self._with_errors(protocol, first)
        super().__init__(self._stream, headers=headers, media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the texts.

        A client may disconnect while a text is sent. Then only this method closes the generators.
        """
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()
            await self._stream.aclose()
            await self._texts.aclose()

    async def _with_errors(self, protocol: Protocol, first: str) -> AsyncGenerator[str]:
        try:
            if first:
                yield first
            async for text in self._texts:
                yield text
                await asyncio.sleep(0)  # let other tasks run
        except Exception as error:  # noqa: BLE001  internal unless a RequestError
            request_error = error if isinstance(error, RequestError) else internal_error(error)
            yield format_event(
                ("" if isinstance(protocol, ChatCompletions) else "error", protocol.build_error(request_error))
            )


def build_error_handler(
    not_found_error: Callable[[], RequestError],
) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return the handler of routing errors: unknown address or method not allowed.

    Args:
        not_found_error: function that returns the error for an unknown address.
    """

    async def handle_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method_error = RequestError(error.status_code, "not_allowed", error.detail)
        request_error = not_found_error() if error.status_code == 404 else method_error
        body: Mapping[str, Any] = get_protocol(request.url.path).build_error(request_error)
        return JSONResponse(body, request_error.status, error.headers)

    return handle_error
