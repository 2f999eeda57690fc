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
from marft.agents.live import Begun, Live
from marft_serve.gateway.hearing import Hearing, Telling
from marft_serve.gateway.hosts import is_our_origin, is_ours
from marft_serve.gateway.http import (
    Bounds,
    EventStream,
    asked_by,
    body_of,
    in_words,
    no_address,
    protocol_at,
    unexpected,
    unless_gone,
    written,
)
from marft_serve.gateway.protocol.anthropic import Counted, Messages
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.protocol.exchange import Asked, Event, Protocol
from marft_serve.gateway.protocol.responses import Responses
from marft_serve.gateway.refusals import RequestError
from marft_serve.serving.admission import BusyError, Gate, Place
from marft_serve.serving.asking import HONOURED, Answered, Asking
from marft_serve.serving.measuring import NOBODY, Measured

T = TypeVar("T")
NOBODY_READS = Response(status_code=499)
NAMED = re.compile(rb'"model"\s*:\s*"([^"\\]{1,256})"')  # model name in an unparsed body


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
        asking: request handler of the team.
        loop: the engine's event loop.
        token: token that requests must have; "" for none.
        limits: limits for requests.
        busy: callback with the number of requests, after each change.
        host: listening host; without a token, requests must use this or another known host name.
        names: further host names of the server.
    """

    def __init__(
        self, asking: Asking, loop: asyncio.AbstractEventLoop, token: str, limits: Limits = Limits(),
        busy: Callable[[int], None] = lambda _: None, host: str = "127.0.0.1", names: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.host, self.names = host, names
        self.asking, self.loop, self.token, self.limits, self.bounds = asking, loop, token, limits, Bounds()
        self.gate = Gate(limits.concurrency, limits.queue, busy)
        self.measured = Measured(lambda: self.gate.running, lambda: self.gate.waiting)
        self.beside: list[str] = []  # paths served by other servers
        self.asgi = Starlette(
            routes=[
                Route("/v1/chat/completions", self._endpoint(ChatCompletions()), methods=["POST"]),
                Route("/v1/responses", self._endpoint(Responses()), methods=["POST"]),
                Route("/v1/messages", self._endpoint(Messages()), methods=["POST"]),
                Route(
                    "/v1/messages/count_tokens",
                    in_words(Messages(Counted), self._counted, headers_of),
                    methods=["POST"],
                ),
                Route("/v1/models", in_words(ChatCompletions(), self._models, headers_of), methods=["GET"]),
                Route(
                    "/v1/models/{model:path}", in_words(ChatCompletions(), self._models, headers_of), methods=["GET"]
                ),
                Route("/healthz", self._healthy, methods=["GET"]),
                Route("/metrics", in_words(ChatCompletions(), self._metrics, headers_of), methods=["GET"]),
            ],
            exception_handlers={HTTPException: no_address(self._unknown)},
            middleware=[Middleware(Guarded, app_=self)],
        )
        self.asgi.router.redirect_slashes = False  # an unknown address stays unknown with a trailing slash

    def _unknown(self) -> RequestError:
        paths = [route.path for route in self.asgi.routes if isinstance(route, Route) and "{" not in route.path]
        outer = [path for path in paths if not any(path.startswith(f"{other}/") for other in paths)]
        served = ", ".join([*outer, *self.beside])
        return RequestError(404, "not_found", f"nothing is served at this address; these are: {served}")

    def _endpoint(self, protocol: Protocol) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            """Answer a request; count and report its errors."""
            uncounted = [NOBODY]
            try:
                return await self._answer(protocol, request, uncounted)
            except RequestError as error:
                told = error
            except Exception as error:  # noqa: BLE001  internal error
                told = unexpected(error)
            for model in uncounted:
                self.measured.requests.labels(model, told.status).inc()
            return JSONResponse(protocol.error(told), told.status, headers_of(told))

        return endpoint

    async def _answer(self, protocol: Protocol, request: Request, uncounted: list[str]) -> Response:
        """Answer a request.

        Args:
            protocol: wire protocol of the client.
            request: the request.
            uncounted: list with the model name for the error count; emptied once the request counts itself.

        Raises:
            RequestError: the request was rejected or failed.
        """
        self.check(request)
        body = await body_of(request, self.bounds)
        uncounted[0] = self._named_in(body)
        place = self.gate.enter()
        try:
            asked = replace(await asked_by(protocol, body), turns=None)  # nothing is stored for later requests
            model = asked.model or self.asking.teams[0]
            uncounted[0] = model if model in self.asking.models else NOBODY
            self.asking.check(model, asked)
            if asked.chat.constraint:
                await asyncio.to_thread(self.asking.check_form, model, asked)  # compiling a grammar may take a second
            one = OneRequest(self, protocol, asked, model, self.asking.next_name())
        except BaseException:
            place.leave()
            raise
        one.begin(place)
        uncounted.clear()
        headers = {"x-request-id": one.name}
        if asked.stream and model in self.asking.teams:
            return EventStream(protocol, one.live(), headers, ended=one.end)
        if asked.stream:
            first = await one.unless_gone(request, anext(texts := one.live()))
            return EventStream(protocol, texts, headers, first) if first else NOBODY_READS
        answered = await one.unless_gone(request, one.answer())
        return JSONResponse(one.body(answered), headers=headers) if answered else NOBODY_READS

    def _named_in(self, body: bytes) -> str:
        """Return a known model's name from an unparsed body, for error counts."""
        found = NAMED.search(body)
        name = found[1].decode("utf-8", "replace") if found else ""
        return name if name in self.asking.models else NOBODY

    def check(self, request: Request) -> None:
        """Check the token in a request.

        Raises:
            RequestError: the token is missing or wrong.
        """
        if not self.token:
            return
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise RequestError(401, "invalid_api_key", "this needs the server's token, as a bearer token")

    def check_page(self, headers: Headers) -> None:
        """Check that a request without a token does not come from a foreign web page in a local browser.

        Raises:
            RequestError: ``Host`` or ``Origin`` is foreign.
        """
        if self.token:
            return
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not is_ours(hosts[0], self.host, self.names):
            raise RequestError(
                421, "wrong_host", "this host is not answered to without a token; use the server's address"
            )
        if origins and (len(origins) != 1 or not is_our_origin(origins[0], self.host, self.names)):
            raise RequestError(403, "forbidden", "pages of other hosts are answered with a token alone")

    async def _counted(self, request: Request) -> Response:
        """Return the number of prompt tokens for a role."""
        self.check(request)
        asked = await asked_by(Messages(Counted), await body_of(request, self.bounds))
        counting = self.asking.count(asked.model or self.asking.teams[0], asked)
        counted = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(counting, self.loop))
        return JSONResponse({"input_tokens": counted})

    async def _models(self, request: Request) -> Response:
        self.check(request)
        named = request.path_params.get("model")
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "marft"} for name in self.asking.models]
        if named is None:
            return JSONResponse({"object": "list", "data": models})
        if named not in self.asking.models:
            raise RequestError(404, "model_not_found", "there is no such model", "model")
        return JSONResponse(models[self.asking.models.index(named)])

    async def _healthy(self, _: Request) -> Response:
        """Report whether the engine works; after an engine failure, every request still tries again."""
        problem = self.asking.problem or ("" if self.loop.is_running() else "its event loop has ended")
        return PlainTextResponse(
            f"the engine cannot go on: {problem}\n" if problem else "ok\n", 503 if problem else 200
        )

    async def _metrics(self, request: Request) -> Response:
        self.check(request)
        return Response(self.measured.text(), media_type="text/plain; version=0.0.4")


class Guarded:
    """ASGI middleware for all routes; rejects requests from foreign web pages."""

    def __init__(self, app: ASGIApp, app_: App) -> None:
        self._inner, self._app = app, app_

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._app.check_page(Headers(scope=scope))
            except RequestError as error:
                self._app.measured.requests.labels(NOBODY, error.status).inc()
                refusal = JSONResponse(protocol_at(scope["path"]).error(error), error.status, headers_of(error))
                await refusal(scope, receive, send)
                return
        await self._inner(scope, receive, send)


class OneRequest:
    """Request from its entry into the queue to its answer."""

    def __init__(self, app: App, protocol: Protocol, asked: Asked, model: str, name: str) -> None:
        self.app, self.protocol, self.asked, self.model, self.name = app, protocol, asked, model, name
        self._hearing = Hearing()
        self._lives = [Live() for _ in range(asked.count)] if asked.stream else []
        self._began = time.perf_counter()
        self._task: asyncio.Task[Answered]

    def begin(self, place: Place) -> None:
        """Start a task that waits for the request's turn and then runs it."""
        self._task = asyncio.create_task(self._asked(place))
        self._task.add_done_callback(lambda task: self._ended(place, task))

    async def answer(self, tell: Callable[[Mapping[str, str]], Awaitable[None]] | None = None) -> Answered:
        """Wait for the answer; if the caller is cancelled, the request is cancelled too.

        Args:
            tell: callback with progress before the answer: requested agents and their messages.

        Raises:
            RequestError: the request failed.
        """
        try:
            if tell:
                async for heard in self._hearing.told(self._task):
                    if isinstance(heard, Mapping):
                        await tell(heard)
            return await self._task
        finally:
            self._task.cancel()

    async def unless_gone(self, request: Request, answer: Awaitable[T]) -> T | None:
        """Return the result of an awaitable; if the client disconnects first, cancel the request and return None.

        Raises:
            RequestError: the request failed.
        """
        found = await unless_gone(request, answer)
        if found is None:
            self._task.cancel()
        return found

    def end(self) -> None:
        """Cancel the request if still running."""
        self._task.cancel()

    async def live(self) -> AsyncGenerator[str]:
        """Yield a streamed response.

        For a team, it starts with progress: requested agents and their messages. Then it streams the answer.
        Closing the generator cancels the request.

        Raises:
            RequestError: the request failed.
        """

        async def replies() -> Sequence[Reply]:
            """Return the final replies."""
            return (await self._task).replies

        self._hearing.hear(self._lives)
        telling = Telling(self.protocol, self.asked, self._hearing, self._about, self._written, self._progress)
        try:
            async with aclosing(telling.texts(asyncio.ensure_future(replies()))) as texts:
                async for text in texts:
                    yield text
        finally:
            self._task.cancel()

    def body(self, answered: Answered) -> dict[str, Any]:
        """Return the body of a complete response."""
        return self._named(self.protocol.response(self.asked, answered.replies, self._about()))

    async def _asked(self, place: Place) -> Answered:
        await place.work()
        limit = self.app.limits.seconds
        asking = self.app.asking.ask(self.model, self.asked, self.name, self._hearing.note, self._lives)
        answer = asyncio.run_coroutine_threadsafe(asking, self.app.loop)
        try:
            async with asyncio.timeout(limit):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise RequestError(504, "timeout", f"the answer took over {limit:g} s") from None

    def _ended(self, place: Place, task: asyncio.Task[Answered]) -> None:
        place.leave()
        measured = self.app.measured
        if task.cancelled():
            measured.requests.labels(self.model, 499).inc()
            return
        error = task.exception()
        if error is not None:
            measured.requests.labels(self.model, error.status if isinstance(error, RequestError) else 500).inc()
            return
        answered = task.result()
        measured.requests.labels(self.model, 200).inc()
        measured.seconds.labels(self.model).observe(time.perf_counter() - self._began)
        measured.tokens.labels(self.model, "read").inc(answered.read)
        measured.tokens.labels(self.model, "sampled").inc(answered.said)
        for action in answered.episode.actions:
            measured.actions.labels(action.agent).inc()

    def _progress(self, said: Mapping[str, str]) -> str:
        """Format progress for a stream: as reasoning in Chat Completions, as a comment in other protocols."""
        if not isinstance(self.protocol, ChatCompletions):
            return f": {said['agent']} {said['state']}\n\n"
        text = f"{said['agent']} …\n" if said["state"] == "asked" else ""
        if "text" in said:
            text = f"{said['agent']}: {said['text']}\n\n"
        delta = {"reasoning_content": text} if text else {}
        choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}
        head = {"object": "chat.completion.chunk", "created": int(time.time()), "model": self.model}
        progress = {key: value for key, value in said.items() if key != "text"}
        return written(("", self._named(head | {"choices": [choice], "marft": {"progress": progress}})))

    def _named(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Give a Chat Completions response a unique id."""
        named = {"id": f"chatcmpl-{self.name}"} if isinstance(self.protocol, ChatCompletions) else {}
        return {**said, **named}

    def _written(self, event: Event) -> str:
        name, said = event
        return written((name, said if isinstance(said, str) else self._named(said)))

    def _about(self, begun: Sequence[Begun] = ()) -> dict[str, Any]:
        """Return a response's metadata.

        Args:
            begun: actions started so far; ignored once the request has finished, when all actions are known.
        """
        chat = self.asked.chat
        actions = [Begun.of(one) for one in self._task.result().episode.actions] if self._task.done() else begun
        about: dict[str, Any] = {
            "request": self.name,
            "actions": [{"id": one.id, "policy": one.policy, "sees": list(one.sees)} for one in actions],
        }
        only = {name: value for name, value in chat.wishes.items() if name not in HONOURED}
        named = _unless_empty(recorded_only=only, ignored=list(self.asked.ignored))
        return {"model": self.model, "marft": about | named}


def _unless_empty(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def headers_of(error: RequestError) -> dict[str, str]:
    """Return the headers for an error response."""
    if isinstance(error, BusyError):
        return {"retry-after": str(error.seconds)}
    headers = {"x-should-retry": "false"} | ({"connection": "close"} if error.status == 408 else {})
    return headers | ({"www-authenticate": "Bearer"} if error.status == 401 else {})
