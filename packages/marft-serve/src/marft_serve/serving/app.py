"""Routes for a served team: ``/v1/…`` for clients, ``/healthz`` and ``/metrics`` for monitoring."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from marft.agents.chat import Reply
from marft.agents.streaming import ActionStart, TokenStream
from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.hosts import is_allowed_host, is_allowed_origin
from marft_serve.gateway.http import (
    BodyLimits,
    EventStream,
    build_endpoint,
    build_error_handler,
    cancel_on_disconnect,
    format_event,
    get_protocol,
    internal_error,
    parse_request,
    read_body,
)
from marft_serve.gateway.protocol.anthropic import CountTokensRequest, Messages
from marft_serve.gateway.protocol.base import Event, ParsedRequest, Protocol
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.protocol.responses import Responses
from marft_serve.gateway.stream_buffer import StreamBuffer, StreamResponse
from marft_serve.serving.admission import AdmissionQueue, BusyError, QueueSlot
from marft_serve.serving.metrics import UNKNOWN_MODEL, ServerMetrics
from marft_serve.serving.team_handler import APPLIED_OPTIONS, RequestResult, TeamHandler

T = TypeVar("T")
CLIENT_CLOSED = Response(status_code=499)
MODEL_PATTERN = re.compile(rb'"model"\s*:\s*"([^"\\]{1,256})"')  # model name in an unparsed body


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for a server.

    Args:
        concurrency: maximum number of concurrent requests.
        queue: maximum number of waiting requests; further requests are rejected.
        seconds: timeout of a request in seconds, counted from its turn.
    """

    concurrency: int = 32
    queue: int = 256
    seconds: float = 600.0


class App:
    """ASGI application for a served team.

    It runs on the server's thread. The team runs on the engine's event loop.

    Args:
        handler: request handler of the team.
        loop: the engine's event loop.
        token: token that requests must have; "" for none.
        limits: limits for requests.
        on_load_change: callback with the number of requests, after each change.
        host: listening host; without a token, requests must use this or another known host name.
        names: further host names of the server.
    """

    def __init__(
        self,
        handler: TeamHandler,
        loop: asyncio.AbstractEventLoop,
        token: str,
        limits: Limits = Limits(),
        on_load_change: Callable[[int], None] = lambda _: None,
        host: str = "127.0.0.1",
        names: Sequence[str] = (),
    ) -> None:
        self.host, self.names = host, names
        self.handler, self.loop, self.token, self.limits, self.body_limits = handler, loop, token, limits, BodyLimits()
        self.admission = AdmissionQueue(limits.concurrency, limits.queue, on_load_change)
        self.metrics = ServerMetrics(lambda: self.admission.running, lambda: self.admission.waiting)
        self.other_paths: list[str] = []  # paths served by other servers
        self.asgi = Starlette(
            routes=[
                Route("/v1/chat/completions", self._build_endpoint(ChatCompletions()), methods=["POST"]),
                Route("/v1/responses", self._build_endpoint(Responses()), methods=["POST"]),
                Route("/v1/messages", self._build_endpoint(Messages()), methods=["POST"]),
                Route(
                    "/v1/messages/count_tokens",
                    build_endpoint(Messages(CountTokensRequest), self._count_tokens, get_error_headers),
                    methods=["POST"],
                ),
                Route(
                    "/v1/models",
                    build_endpoint(ChatCompletions(), self._list_models, get_error_headers),
                    methods=["GET"],
                ),
                Route(
                    "/v1/models/{model:path}",
                    build_endpoint(ChatCompletions(), self._list_models, get_error_headers),
                    methods=["GET"],
                ),
                Route("/healthz", self._check_health, methods=["GET"]),
                Route(
                    "/metrics", build_endpoint(ChatCompletions(), self._get_metrics, get_error_headers), methods=["GET"]
                ),
            ],
            exception_handlers={HTTPException: build_error_handler(self._not_found_error)},
            middleware=[Middleware(OriginMiddleware, app_=self)],
        )
        self.asgi.router.redirect_slashes = False  # an unknown address stays unknown with a trailing slash

    def _not_found_error(self) -> RequestError:
        paths = [route.path for route in self.asgi.routes if isinstance(route, Route) and "{" not in route.path]
        top_paths = [path for path in paths if not any(path.startswith(f"{prefix}/") for prefix in paths)]
        supported = ", ".join([*top_paths, *self.other_paths])
        return RequestError(404, "not_found", f"nothing is served at this address; these are: {supported}")

    def _build_endpoint(self, protocol: Protocol) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            """Answer a request; count and report its errors."""
            pending_labels = [UNKNOWN_MODEL]
            try:
                return await self._answer(protocol, request, pending_labels)
            except RequestError as error:
                request_error = error
            except Exception as error:  # noqa: BLE001  internal error
                request_error = internal_error(error)
            for model in pending_labels:
                self.metrics.requests.labels(model, request_error.status).inc()
            return JSONResponse(
                protocol.build_error(request_error), request_error.status, get_error_headers(request_error)
            )

        return endpoint

    async def _answer(self, protocol: Protocol, request: Request, pending_labels: list[str]) -> Response:
        """Answer a request.

        Args:
            protocol: wire protocol of the client.
            request: the request.
            pending_labels: list with the model name for the error count; emptied once the request counts itself.

        Raises:
            RequestError: the request was rejected or failed.
        """
        self.check_token(request)
        body = await read_body(request, self.body_limits)
        pending_labels[0] = self._find_model_name(body)
        slot = self.admission.enter()
        try:
            parsed_request = replace(
                await parse_request(protocol, body), turns=None
            )  # nothing is stored for later requests
            model = parsed_request.model or self.handler.team_names[0]
            pending_labels[0] = model if model in self.handler.models else UNKNOWN_MODEL
            self.handler.check_request(model, parsed_request)
            if parsed_request.chat.constraint:
                await asyncio.to_thread(
                    self.handler.check_format, model, parsed_request
                )  # compiling a grammar may take a second
            served_request = ServedRequest(self, protocol, parsed_request, model, self.handler.next_request_id())
        except BaseException:
            slot.release()
            raise
        served_request.start(slot)
        pending_labels.clear()
        headers = {"x-request-id": served_request.name}
        if parsed_request.stream and model in self.handler.team_names:
            return EventStream(protocol, served_request.stream(), headers, on_end=served_request.cancel)
        if parsed_request.stream:
            first = await served_request.cancel_on_disconnect(request, anext(texts := served_request.stream()))
            return EventStream(protocol, texts, headers, first) if first else CLIENT_CLOSED
        result = await served_request.cancel_on_disconnect(request, served_request.wait_for_answer())
        return JSONResponse(served_request.build_body(result), headers=headers) if result else CLIENT_CLOSED

    def _find_model_name(self, body: bytes) -> str:
        """Return a known model's name from an unparsed body, for error counts."""
        match = MODEL_PATTERN.search(body)
        name = match[1].decode("utf-8", "replace") if match else ""
        return name if name in self.handler.models else UNKNOWN_MODEL

    def check_token(self, request: Request) -> None:
        """Check the token in a request.

        Raises:
            RequestError: the token is missing or wrong.
        """
        if not self.token:
            return
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        token = bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise RequestError(401, "invalid_api_key", "this needs the server's token, as a bearer token")

    def check_origin(self, headers: Headers) -> None:
        """Check that a request without a token does not come from a foreign web page in a local browser.

        Raises:
            RequestError: ``Host`` or ``RowSource`` is foreign.
        """
        if self.token:
            return
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not is_allowed_host(hosts[0], self.host, self.names):
            raise RequestError(
                421, "wrong_host", "this host is not answered to without a token; use the server's address"
            )
        if origins and (len(origins) != 1 or not is_allowed_origin(origins[0], self.host, self.names)):
            raise RequestError(403, "forbidden", "pages of other hosts are answered with a token alone")

    async def _count_tokens(self, request: Request) -> Response:
        """Return the number of prompt tokens for a role."""
        self.check_token(request)
        parsed_request = await parse_request(Messages(CountTokensRequest), await read_body(request, self.body_limits))
        coroutine = self.handler.count_tokens(parsed_request.model or self.handler.team_names[0], parsed_request)
        token_count = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))
        return JSONResponse({"input_tokens": token_count})

    async def _list_models(self, request: Request) -> Response:
        self.check_token(request)
        model_name = request.path_params.get("model")
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "marft"} for name in self.handler.models]
        if model_name is None:
            return JSONResponse({"object": "list", "data": models})
        if model_name not in self.handler.models:
            raise RequestError(404, "model_not_found", "there is no such model", "model")
        return JSONResponse(models[self.handler.models.index(model_name)])

    async def _check_health(self, _: Request) -> Response:
        """Report whether the engine works; after an engine failure, every request still tries again."""
        problem = self.handler.problem or ("" if self.loop.is_running() else "its event loop has ended")
        return PlainTextResponse(
            f"the engine cannot go on: {problem}\n" if problem else "ok\n", 503 if problem else 200
        )

    async def _get_metrics(self, request: Request) -> Response:
        self.check_token(request)
        return Response(self.metrics.format_text(), media_type="text/plain; version=0.0.4")


class OriginMiddleware:
    """ASGI middleware for all routes; rejects requests from foreign web pages."""

    def __init__(self, app: ASGIApp, app_: App) -> None:
        self._inner, self._app = app, app_

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._app.check_origin(Headers(scope=scope))
            except RequestError as error:
                self._app.metrics.requests.labels(UNKNOWN_MODEL, error.status).inc()
                response = JSONResponse(
                    get_protocol(scope["path"]).build_error(error), error.status, get_error_headers(error)
                )
                await response(scope, receive, send)
                return
        await self._inner(scope, receive, send)


class ServedRequest:
    """Request from its entry into the queue to its answer."""

    def __init__(self, app: App, protocol: Protocol, parsed_request: ParsedRequest, model: str, name: str) -> None:
        self.app, self.protocol, self.parsed_request, self.model, self.name = app, protocol, parsed_request, model, name
        self._buffer = StreamBuffer()
        self._live_actions = [TokenStream() for _ in range(parsed_request.count)] if parsed_request.stream else []
        self._start_time = time.perf_counter()
        self._task: asyncio.Task[RequestResult]

    def start(self, slot: QueueSlot) -> None:
        """Start a task that waits for the request's turn and then runs it."""
        self._task = asyncio.create_task(self._run(slot))
        self._task.add_done_callback(lambda task: self._on_done(slot, task))

    async def wait_for_answer(
        self, on_progress: Callable[[Mapping[str, str]], Awaitable[None]] | None = None
    ) -> RequestResult:
        """Wait for the answer; if the caller is cancelled, the request is cancelled too.

        Args:
            on_progress: callback with progress before the answer: requested agents and their messages.

        Raises:
            RequestError: the request failed.
        """
        try:
            if on_progress:
                async for update in self._buffer.iter_updates(self._task):
                    if isinstance(update, Mapping):
                        await on_progress(update)
            return await self._task
        finally:
            self._task.cancel()

    async def cancel_on_disconnect(self, request: Request, answer: Awaitable[T]) -> T | None:
        """Return the result of an awaitable; if the client disconnects first, cancel the request and return None.

        Raises:
            RequestError: the request failed.
        """
        result = await cancel_on_disconnect(request, answer)
        if result is None:
            self._task.cancel()
        return result

    def cancel(self) -> None:
        """Cancel the request if still running."""
        self._task.cancel()

    async def stream(self) -> AsyncGenerator[str]:
        """Yield a streamed response.

        For a team, it starts with progress: requested agents and their messages. Then it streams the answer.
        Closing the generator cancels the request.

        Raises:
            RequestError: the request failed.
        """

        async def replies() -> Sequence[Reply]:
            """Return the final replies."""
            return (await self._task).replies

        self._buffer.subscribe(self._live_actions)
        response = StreamResponse(
            self.protocol,
            self.parsed_request,
            self._buffer,
            self._build_metadata,
            self._format_event,
            self._format_progress,
        )
        try:
            async with aclosing(response.iter_texts(asyncio.ensure_future(replies()))) as texts:
                async for text in texts:
                    yield text
        finally:
            self._task.cancel()

    def build_body(self, result: RequestResult) -> dict[str, Any]:
        """Return the body of a complete response."""
        return self._add_id(self.protocol.build_response(self.parsed_request, result.replies, self._build_metadata()))

    async def _run(self, slot: QueueSlot) -> RequestResult:
        await slot.acquire()
        limit = self.app.limits.seconds
        coroutine = self.app.handler.answer(
            self.model, self.parsed_request, self.name, self._buffer.add_note, self._live_actions
        )
        answer = asyncio.run_coroutine_threadsafe(coroutine, self.app.loop)
        try:
            async with asyncio.timeout(limit):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise RequestError(504, "timeout", f"the answer took over {limit:g} s") from None

    def _on_done(self, slot: QueueSlot, task: asyncio.Task[RequestResult]) -> None:
        slot.release()
        metrics = self.app.metrics
        if task.cancelled():
            metrics.requests.labels(self.model, 499).inc()
            return
        error = task.exception()
        if error is not None:
            metrics.requests.labels(self.model, error.status if isinstance(error, RequestError) else 500).inc()
            return
        result = task.result()
        metrics.requests.labels(self.model, 200).inc()
        metrics.seconds.labels(self.model).observe(time.perf_counter() - self._start_time)
        metrics.tokens.labels(self.model, "read").inc(result.prompt_tokens)
        metrics.tokens.labels(self.model, "sampled").inc(result.sampled_tokens)
        for action in result.episode.actions:
            metrics.actions.labels(action.agent).inc()

    def _format_progress(self, update: Mapping[str, str]) -> str:
        """Format progress for a stream: as reasoning in Chat Completions, as a comment in other protocols."""
        if not isinstance(self.protocol, ChatCompletions):
            return f": {update['agent']} {update['state']}\n\n"
        text = f"{update['agent']} …\n" if update["state"] == "asked" else ""
        if "text" in update:
            text = f"{update['agent']}: {update['text']}\n\n"
        delta = {"reasoning_content": text} if text else {}
        choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}
        head = {"object": "chat.completion.chunk", "created": int(time.time()), "model": self.model}
        progress = {key: value for key, value in update.items() if key != "text"}
        return format_event(("", self._add_id(head | {"choices": [choice], "marft": {"progress": progress}})))

    def _add_id(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Give a Chat Completions response a unique id."""
        id_field = {"id": f"chatcmpl-{self.name}"} if isinstance(self.protocol, ChatCompletions) else {}
        return {**body, **id_field}

    def _format_event(self, event: Event) -> str:
        name, payload = event
        return format_event((name, payload if isinstance(payload, str) else self._add_id(payload)))

    def _build_metadata(self, started_actions: Sequence[ActionStart] = ()) -> dict[str, Any]:
        """Return a response's metadata.

        Args:
            started_actions: actions started so far; ignored once the request has finished, when all actions are known.
        """
        chat = self.parsed_request.chat
        actions = (
            [ActionStart.from_action(action) for action in self._task.result().episode.actions]
            if self._task.done()
            else started_actions
        )
        metadata: dict[str, Any] = {
            "request": self.name,
            "actions": [{"id": action.id, "policy": action.policy, "sees": list(action.sees)} for action in actions],
        }
        recorded_only = {name: value for name, value in chat.recorded_options.items() if name not in APPLIED_OPTIONS}
        field_notes = _drop_empty(recorded_only=recorded_only, ignored=list(self.parsed_request.ignored))
        return {"model": self.model, "marft": metadata | field_notes}


def _drop_empty(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def get_error_headers(error: RequestError) -> dict[str, str]:
    """Return the headers for an error response."""
    if isinstance(error, BusyError):
        return {"retry-after": str(error.retry_seconds)}
    headers = {"x-should-retry": "false"} | ({"connection": "close"} if error.status == 408 else {})
    return headers | ({"www-authenticate": "Bearer"} if error.status == 401 else {})
