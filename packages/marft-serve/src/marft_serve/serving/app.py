"""Routes and metrics of a served team: ``/v1/…`` for clients, ``/healthz`` and ``/metrics`` for monitoring."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from marft.agents.chat import Chat, Reply
from marft.agents.streaming import ActionStart, TokenStream
from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.hosts import are_secrets_equal, get_bearer_token, is_allowed_host, is_allowed_origin
from marft_serve.gateway.http import (
    EventStream,
    ModelApi,
    build_models_response,
    cancel_on_disconnect,
    get_protocol,
    parse_request,
    read_body,
)
from marft_serve.gateway.protocol.base import Metadata, ParsedRequest, Protocol, format_event
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.stream_buffer import StreamBuffer, StreamResponse
from marft_serve.serving.admission import AdmissionQueue, BusyError, QueueSlot
from marft_serve.serving.options import ServeOptions
from marft_serve.serving.team_handler import APPLIED_OPTIONS, RequestResult, TeamHandler

BUCKET_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)
UNKNOWN_MODEL = "unknown"  # label for requests with an unknown model, since clients choose model names
T = TypeVar("T")
CLIENT_CLOSED = Response(status_code=499)
MODEL_PATTERN = re.compile(rb'"model"\s*:\s*"([^"\\]{1,256})"')  # model name in an unparsed body


class ServerMetrics:
    """Metrics for one server."""

    def __init__(self, running: Callable[[], float], waiting: Callable[[], float]) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "marft_requests", "Requests, by what became of them.", ["model", "status"], registry=registry
        )
        self.tokens = Counter("marft_tokens", "Tokens of all agents that acted.", ["model", "kind"], registry=registry)
        self.seconds = Histogram(
            "marft_request_seconds",
            "From a request to its answer, waiting included.",
            ["model"],
            buckets=BUCKET_SECONDS,
            registry=registry,
        )
        self.actions = Counter("marft_actions", "Actions, by agent.", ["agent"], registry=registry)
        self.unrecorded = Counter("marft_unrecorded", "Sessions that could not be written down.", registry=registry)
        Gauge("marft_running", "Requests that are answered now.", registry=registry).set_function(running)
        Gauge("marft_waiting", "Requests that wait for a place.", registry=registry).set_function(waiting)

    def format_text(self) -> bytes:
        """Return all metrics in Prometheus text format."""
        return bytes(generate_latest(self.registry))


class App(ModelApi):
    """ASGI application for a served team.

    It runs on the server's thread. The team runs on the engine's event loop.

    Args:
        handler: request handler of the team.
        loop: the engine's event loop.
        options: options for the server. Without a token, requests must use a known host name.
        on_load_change: callback with the number of requests, after each change.
    """

    def __init__(
        self,
        handler: TeamHandler,
        loop: asyncio.AbstractEventLoop,
        options: ServeOptions,
        on_load_change: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.handler, self.loop, self.options = handler, loop, options
        self._names = [urlsplit(options.public_url).hostname or ""] if options.public_url else []
        self.admission = AdmissionQueue(options.concurrency, options.queue, on_load_change)
        self.metrics = ServerMetrics(lambda: self.admission.running, lambda: self.admission.waiting)
        self.other_paths: list[str] = []  # paths served by other servers
        routes = [
            Route("/healthz", self._check_health, methods=["GET"]),
            Route("/metrics", self.build_endpoint(ChatCompletions(), self._get_metrics), methods=["GET"]),
        ]
        super().__init__("/v1", routes, middleware=[Middleware(OriginMiddleware, app_=self)])

    def not_found_error(self) -> RequestError:
        paths = [route.path for route in self.asgi.routes if isinstance(route, Route) and "{" not in route.path]
        top_paths = [path for path in paths if not any(path.startswith(f"{prefix}/") for prefix in paths)]
        supported = ", ".join([*top_paths, *self.other_paths])
        return RequestError(404, "not_found", f"nothing is served at this address; these are: {supported}")

    def get_error_headers(self, error: RequestError) -> dict[str, str]:
        if isinstance(error, BusyError):
            return {"retry-after": str(error.retry_seconds)}
        return super().get_error_headers(error) | ({"www-authenticate": "Bearer"} if error.status == 401 else {})

    def reject(self, error: RequestError, path: str) -> Response:
        """Count a request rejected before it was read; return the error response."""
        self.metrics.requests.labels(UNKNOWN_MODEL, error.status).inc()
        return self.build_error_response(get_protocol(path), error)

    async def ask_team(
        self, task: str, on_progress: Callable[[Mapping[str, str]], Awaitable[None]] | None = None
    ) -> tuple[str, RequestResult]:
        """Answer a task as a request to the whole team; return the request's id and result.

        Args:
            task: the task.
            on_progress: callback with progress before the answer: requested agents and their messages.

        Raises:
            RequestError: the queue is full, or the request failed.
        """
        name, chat = self.handler.team_names[0], Chat(messages=({"role": "user", "content": task},))
        served_request = ServedRequest(self, ChatCompletions(), ParsedRequest(chat), name)
        try:
            slot = self.admission.enter()
        except BusyError as error:  # other errors are counted by the request itself
            self.metrics.requests.labels(name, error.status).inc()
            raise
        served_request.start(slot)
        return served_request.name, await served_request.wait_for_answer(on_progress)

    async def answer(self, protocol: Protocol, request: Request) -> Response:
        """Answer a chat; count its errors."""
        pending_labels = [UNKNOWN_MODEL]
        try:
            return await self._answer(protocol, request, pending_labels)
        except Exception as error:
            for model in pending_labels:
                self.metrics.requests.labels(model, get_status(error)).inc()
            raise

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
            served_request = ServedRequest(self, protocol, parsed_request, model)
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
        if result is None:
            return CLIENT_CLOSED
        response = protocol.build_response(parsed_request, result.replies, served_request.build_metadata())
        return JSONResponse(response, headers=headers)

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
        if not self.options.token:
            return
        bearer = get_bearer_token(request.headers)
        token = request.headers.get("x-api-key", "") if bearer is None else bearer
        if not are_secrets_equal(token, self.options.token):
            raise RequestError(401, "invalid_api_key", "this needs the server's token, as a bearer token")

    def check_origin(self, headers: Headers) -> None:
        """Check that a request without a token does not come from a foreign web page in a local browser.

        Raises:
            RequestError: ``Host`` or ``Origin`` is foreign.
        """
        if self.options.token:
            return
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not is_allowed_host(hosts[0], self.options.host, self._names):
            raise RequestError(
                421, "wrong_host", "this host is not answered to without a token; use the server's address"
            )
        if origins and (len(origins) != 1 or not is_allowed_origin(origins[0], self.options.host, self._names)):
            raise RequestError(403, "forbidden", "pages of other hosts are answered with a token alone")

    async def count_tokens(self, protocol: Protocol, request: Request) -> Response:
        """Return the number of prompt tokens for a role."""
        self.check_token(request)
        parsed_request = await parse_request(protocol, await read_body(request, self.body_limits))
        coroutine = self.handler.count_tokens(parsed_request.model or self.handler.team_names[0], parsed_request)
        token_count = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))
        return JSONResponse({"input_tokens": token_count})

    async def list_models(self, protocol: Protocol, request: Request) -> Response:  # noqa: ARG002
        self.check_token(request)
        return build_models_response(self.handler.models, request.path_params.get("model"), "there is no such model")

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
                response = self._app.reject(error, scope["path"])
                await response(scope, receive, send)
                return
        await self._inner(scope, receive, send)


class ServedRequest:
    """Request from its entry into the queue to its answer."""

    def __init__(self, app: App, protocol: Protocol, parsed_request: ParsedRequest, model: str) -> None:
        self.app, self.protocol, self.parsed_request, self.model = app, protocol, parsed_request, model
        self.name = app.handler.next_request_id()
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
            self.protocol, self.parsed_request, self._buffer, self.build_metadata, self._format_progress
        )
        try:
            async with aclosing(response.iter_texts(asyncio.ensure_future(replies()))) as texts:
                async for text in texts:
                    yield text
        finally:
            self._task.cancel()

    async def _run(self, slot: QueueSlot) -> RequestResult:
        await slot.acquire()
        limit = self.app.options.timeout_seconds
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
            metrics.requests.labels(self.model, get_status(error)).inc()
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
        chunk = {
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": self.model,
            "choices": [choice],
            "marft": {"progress": {key: value for key, value in update.items() if key != "text"}},
            "id": f"chatcmpl-{self.name}",
        }
        return format_event(("", chunk))

    def build_metadata(self, started_actions: Sequence[ActionStart] = ()) -> Metadata:
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
        marft: dict[str, object] = {
            "request": self.name,
            "actions": [{"id": action.id, "policy": action.policy, "sees": list(action.sees)} for action in actions],
        }
        recorded_only = {name: value for name, value in chat.recorded_options.items() if name not in APPLIED_OPTIONS}
        if recorded_only:
            marft["recorded_only"] = recorded_only
        if self.parsed_request.ignored:
            marft["ignored"] = list(self.parsed_request.ignored)
        return {"model": self.model, "marft": marft, "request": self.name}


def get_status(error: BaseException) -> int:
    """Return the HTTP status for an error."""
    return error.status if isinstance(error, RequestError) else 500
