"""HTTP code shared by the gateway and ``marft serve``: endpoints, request bodies, event streams and errors.

For a new endpoint, add an entry to ``ENDPOINTS``. Add its format, a :class:`Protocol`, in
:mod:`marft_serve.gateway.protocol` if no existing one fits. A new kind of action also needs

- its name in the ``Literal`` of :attr:`Endpoint.action`, and in ``actions`` of :class:`ModelApi`;
- an abstract method of :class:`ModelApi`;
- that method in both apps: ``Gateway`` (``gateway/app.py``) and ``App`` (``serving/app.py``, which calls
  ``serving/team_handler.py``).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from marft.common.log import get_logger
from marft.common.texts import replace_surrogates
from marft_serve.gateway.errors import RequestError, invalid_error
from marft_serve.gateway.protocol.anthropic import CountTokensRequest, Messages
from marft_serve.gateway.protocol.base import NO_CONVERSATIONS, ParsedRequest, Protocol, format_event
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.protocol.parsing import ClientMessage
from marft_serve.gateway.protocol.responses import Responses

logger = get_logger(__name__)
T = TypeVar("T")
LARGE_BODY_BYTES = 2**15  # bytes; larger bodies are parsed on a thread
UNSUPPORTED_PATHS = {  # common paths of other APIs, with the error message for each
    "completions": "agents are asked in chats, at chat/completions, responses or messages",
    "embeddings": "agents write text, and embed none",
}
Answer = Callable[[Request], Awaitable[Response]]
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Endpoint(NamedTuple):
    """Endpoint of a model API.

    Args:
        path: path after ``v1/``.
        protocol: format of its requests and responses.
        action: method of :class:`ModelApi` that answers its requests.
    """

    path: str
    protocol: Protocol
    action: Literal["answer", "count_tokens", "list_models"] = "answer"


ENDPOINTS = (
    Endpoint("chat/completions", ChatCompletions()),
    Endpoint("responses", Responses()),
    Endpoint("messages", Messages()),
    Endpoint("messages/count_tokens", Messages(CountTokensRequest), "count_tokens"),
    Endpoint("models", ChatCompletions(), "list_models"),
    Endpoint("models/{model:path}", ChatCompletions(), "list_models"),
)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits on a request body.

    Args:
        max_body_bytes: maximum size in bytes.
        body_timeout_seconds: timeout for the whole body, in seconds.
    """

    max_body_bytes: int = 4 * 2**20
    body_timeout_seconds: float = 30.0


async def read_body(request: Request, limits: BodyLimits) -> bytes:
    """Read a request's body.

    Raises:
        RequestError: the body is too large, or did not arrive within the timeout.
    """
    max_bytes, body = limits.max_body_bytes, bytearray()
    too_large = RequestError(413, "request_too_large", f"a request has at most {max_bytes} bytes")
    with suppress(ValueError):
        if int(request.headers.get("content-length", "0")) > max_bytes:
            raise too_large
    try:
        async with asyncio.timeout(limits.body_timeout_seconds):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        seconds = f"{limits.body_timeout_seconds:g} s"
        raise RequestError(408, "request_timeout", f"the body did not come in {seconds}") from None
    except ClientDisconnect:
        raise invalid_error("the body ended before it was whole") from None
    return bytes(body)


async def parse_request(
    protocol: Protocol, body: bytes, earlier: Mapping[str, tuple[ClientMessage, ...]] = NO_CONVERSATIONS
) -> ParsedRequest:
    """Parse a request.

    Raises:
        RequestError: the request is invalid.
    """
    return await run_if_large(body, lambda body: protocol.parse_request(body, earlier))


async def run_if_large(body: bytes, function: Callable[[bytes], T]) -> T:
    """Call a function with a body, on a thread if the body is large."""
    return function(body) if len(body) < LARGE_BODY_BYTES else await asyncio.to_thread(function, body)


def unsupported_path_error(path: str) -> RequestError:
    """Return the error for a path below an agent's address without an endpoint for the request's method."""
    paths = [f"v1/{endpoint.path}" for endpoint in ENDPOINTS if "{" not in endpoint.path]
    if path in paths:
        return RequestError(405, "not_allowed", "Method Not Allowed")
    path = path.removeprefix("v1/")
    reason = UNSUPPORTED_PATHS.get(path.strip("/"), "there is nothing at this address")
    path_name = replace_surrogates(path)[:100] or "the address of an agent alone"
    return RequestError(404, "not_found", f"{path_name} is not served: {reason}; served are {', '.join(paths)}")


def get_protocol(path: str) -> Protocol:
    """Return the protocol for errors at a path, which may be unsupported."""
    named = (endpoint.protocol for endpoint in ENDPOINTS if f"/{endpoint.path}" in path)
    return next((protocol for protocol in named if protocol.has_own_errors), ChatCompletions())


def internal_error(error: Exception) -> RequestError:
    """Log an internal error and return a generic error for the client."""
    logger.error("a request could not be answered", exc_info=error)
    return RequestError(500, "internal_error", "the server could not answer this request; its log says why")


class ModelApi(ABC):
    """Server of the model APIs, with every error in the format of its protocol.

    Args:
        base: path before the endpoints' paths.
        routes: further routes.
        body_limits: limits on request bodies.
        middleware: middleware around all routes.
    """

    def __init__(
        self,
        base: str,
        routes: Sequence[Route],
        body_limits: BodyLimits = BodyLimits(),
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self.body_limits = body_limits
        actions = {"answer": self.answer, "count_tokens": self.count_tokens, "list_models": self.list_models}
        endpoints = [
            Route(
                f"{base}/{endpoint.path}",
                self.build_endpoint(endpoint.protocol, partial(actions[endpoint.action], endpoint.protocol)),
                methods=["GET" if endpoint.action == "list_models" else "POST"],
            )
            for endpoint in ENDPOINTS
        ]
        self.asgi = Starlette(
            routes=[*endpoints, *routes],
            exception_handlers={HTTPException: self._handle_routing_error},
            middleware=middleware,
        )
        self.asgi.router.redirect_slashes = False  # an unknown address stays unknown with a trailing slash

    @abstractmethod
    async def answer(self, protocol: Protocol, request: Request) -> Response:
        """Answer a chat.

        Raises:
            RequestError: the request was rejected or failed.
        """

    @abstractmethod
    async def count_tokens(self, protocol: Protocol, request: Request) -> Response:
        """Respond with the number of prompt tokens.

        Raises:
            RequestError: the request was rejected or failed.
        """

    @abstractmethod
    async def list_models(self, protocol: Protocol, request: Request) -> Response:
        """Respond with all models or one model.

        Raises:
            RequestError: the request was rejected, or there is no such model.
        """

    @abstractmethod
    def not_found_error(self) -> RequestError:
        """Return the error for an unknown address."""

    def get_error_headers(self, error: RequestError) -> dict[str, str]:
        """Return headers for an error response; clients should not retry, because the retry would fail too."""
        return {"x-should-retry": "false"} | ({"connection": "close"} if error.status == 408 else {})

    def build_error_response(self, protocol: Protocol, error: RequestError) -> Response:
        """Return an error response in a protocol's format."""
        return JSONResponse(protocol.build_error(error), error.status, self.get_error_headers(error))

    def build_endpoint(self, protocol: Protocol, answer: Answer) -> Answer:
        """Return an endpoint with every error, including internal errors, in a protocol's format."""

        async def endpoint(request: Request) -> Response:
            try:
                return await answer(request)
            except RequestError as error:
                request_error = error
            except Exception as error:  # noqa: BLE001  internal error
                request_error = internal_error(error)
            return self.build_error_response(protocol, request_error)

        return endpoint

    async def _handle_routing_error(self, request: Request, error: Exception) -> Response:
        """Respond to an unknown address or a method that is not allowed."""
        assert isinstance(error, HTTPException)
        method_error = RequestError(error.status_code, "not_allowed", error.detail)
        request_error = self.not_found_error() if error.status_code == 404 else method_error
        body = get_protocol(request.url.path).build_error(request_error)
        return JSONResponse(body, request_error.status, error.headers)


def build_models_response(names: Sequence[str], name: str | None, missing: str) -> Response:
    """Return the response with all models or one model.

    Args:
        names: names of the models.
        name: the requested model; None for all.
        missing: error message for an unknown model.

    Raises:
        RequestError: there is no such model.
    """
    models = [{"id": model, "object": "model", "created": 0, "owned_by": "marft"} for model in names]
    if name is None:
        return JSONResponse({"object": "list", "data": models})
    if name not in names:
        raise RequestError(404, "model_not_found", missing, "model")
    return JSONResponse(models[names.index(name)])


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
            yield format_event((protocol.error_event, protocol.build_error(request_error)))
