"""Routes of the gateway: ``/e/<secret>/<role>/v1/…`` for clients, ``/e/<secret>/waiting`` for programs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from marft.agents.chat import ChatRefusedError, Reply
from marft.agents.live import Begun
from marft_serve.gateway.hearing import Hearing, Telling
from marft_serve.gateway.http import (
    METHODS,
    Bounds,
    EventStream,
    asked_by,
    body_of,
    in_words,
    no_address,
    not_served,
    protocol_at,
    unless_gone,
    written,
)
from marft_serve.gateway.protocol.anthropic import Counted, Messages
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.protocol.exchange import Asked, Protocol
from marft_serve.gateway.protocol.responses import Responses
from marft_serve.gateway.refusals import RequestError, unknown
from marft_serve.gateway.session import ClientRequest, Exchange, Session

T = TypeVar("T")
RETRY_COUNTS = ("x-stainless-retry-count", "x-retry-count")
LONGEST_KEY = 256
WAITING = "waiting"
SERVED = ("chat/completions", "responses", "messages", "messages/count_tokens", "models")


class App:
    """ASGI application of the gateway.

    It runs on the gateway's thread. Sessions run on the run's event loop.

    Args:
        session_of: function from a secret to its session; raises :class:`RequestError` for an unknown secret.
        bounds: limits on request bodies.
    """

    def __init__(self, session_of: Callable[[str], Session], bounds: Bounds) -> None:
        self.session_of, self.bounds = session_of, bounds
        base = "/e/{secret}/{role}/v1"
        self.asgi = Starlette(
            routes=[
                Route(f"{base}/chat/completions", self._endpoint(ChatCompletions()), methods=["POST"]),
                Route(f"{base}/responses", self._endpoint(Responses()), methods=["POST"]),
                Route(f"{base}/messages", self._endpoint(Messages()), methods=["POST"]),
                Route(
                    f"{base}/messages/count_tokens",
                    in_words(Messages(Counted), self._counted, headers_of),
                    methods=["POST"],
                ),
                Route(f"{base}/models", in_words(ChatCompletions(), self._models, headers_of), methods=["GET"]),
                Route(
                    f"{base}/models/{{model:path}}",
                    in_words(ChatCompletions(), self._models, headers_of),
                    methods=["GET"],
                ),
                Route(
                    f"/e/{{secret}}/{WAITING}", in_words(ChatCompletions(), self._waiting, headers_of), methods=["POST"]
                ),
                Route("/e/{secret}/{role}", self._not_served, methods=METHODS),
                Route("/e/{secret}/{role}/{path:path}", self._not_served, methods=METHODS),
            ],
            exception_handlers={HTTPException: no_address(unknown)},
        )
        self.asgi.router.redirect_slashes = False  # an unknown address stays unknown with a trailing slash

    def _endpoint(self, protocol: Protocol) -> Callable[[Request], Awaitable[Response]]:
        return in_words(protocol, partial(self._answer, protocol), headers_of)

    async def _answer(self, protocol: Protocol, request: Request) -> Response:
        session, role = self._session(request), request.path_params["role"]
        body = await body_of(request, self.bounds)
        asked = await asked_by(protocol, body, session.kept.get(role, {}))
        wanted = _wanted(request, role, asked, body)
        if asked.chat.constraint:
            await _checked(await _there(session, session.check_of, wanted))
        if asked.stream:
            return await _streamed(request, protocol, session, asked, wanted)
        answered = await unless_gone(request, _on(session, session.ask(wanted)))
        if answered is None:
            return Response(status_code=499)  # the client has disconnected
        exchange, replies = answered
        try:
            session.kept.setdefault(role, {}).update(protocol.kept(asked, replies))
            begun = [Begun.of(reply.action) for reply in replies]
            response = JSONResponse(protocol.response(asked, replies, _about(asked, begun)), headers=_headers(begun))
        except Exception as error:  # a retry would be a new action and fail in the same way
            raise RequestError(500, "no_response", "the action is recorded, and no response can say it") from error
        session.loop.call_soon_threadsafe(session.deliver, exchange)
        return response

    async def _counted(self, request: Request) -> Response:
        session = self._session(request)
        body = await body_of(request, self.bounds)
        wanted = _wanted(request, request.path_params["role"], await asked_by(Messages(Counted), body), body)
        return JSONResponse({"input_tokens": await _there(session, session.tokens_of, wanted)})

    async def _not_served(self, request: Request) -> Response:
        return await in_words(protocol_at(request.url.path), self._refused, headers_of)(request)

    async def _refused(self, request: Request) -> Response:
        role, path = request.path_params["role"], request.path_params.get("path", "")
        session = self._session(request)
        if role == WAITING and not path:
            raise RequestError(405, "not_allowed", "Method Not Allowed")
        await _there(session, session.policy_of, role, request.path_params["secret"])
        if path.removeprefix("v1/") in SERVED and path.startswith("v1/"):
            raise RequestError(405, "not_allowed", "Method Not Allowed")
        raise not_served(path.removeprefix("v1/"), ", ".join(f"v1/{one}" for one in SERVED))

    async def _models(self, request: Request) -> Response:
        session, role = self._session(request), request.path_params["role"]
        policy = await _there(session, session.policy_of, role, request.path_params["secret"])
        model = {"id": policy, "object": "model", "created": 0, "owned_by": "marft"}
        named = request.path_params.get("model")
        if named not in (None, policy):
            raise RequestError(404, "model_not_found", f"the policy of {role} is called {policy!r}", "model")
        return JSONResponse(model if named else {"object": "list", "data": [model]})

    async def _waiting(self, request: Request) -> Response:
        session = self._session(request)
        await _there(session, session.wait, request.path_params["secret"])
        return Response(status_code=204)

    def _session(self, request: Request) -> Session:
        return self.session_of(request.path_params["secret"])


def headers_of(error: RequestError) -> dict[str, str]:
    """Return headers for an error response; clients should not retry, because the retry would fail too."""
    return {"x-should-retry": "false"} | ({"connection": "close"} if error.status == 408 else {})


def _wanted(request: Request, role: str, asked: Asked, body: bytes) -> ClientRequest:
    """Convert an HTTP request to a request to the session.

    Raises:
        RequestError: a header is invalid.
    """
    headers = request.headers
    counts = [headers[name] for name in RETRY_COUNTS if name in headers]
    if any(not count.isdecimal() or len(count) > 4 for count in counts):
        raise RequestError(400, "invalid_value", "the count of retries must be a number", RETRY_COUNTS[0])
    key = headers.get("idempotency-key", "")
    if len(key) > LONGEST_KEY:
        raise RequestError(400, "invalid_value", f"an idempotency key has at most {LONGEST_KEY} characters")
    chat, declared = asked.chat, headers.get("x-marft-sees")
    if declared is not None:
        chat = replace(chat, sees=tuple(unquote(name) for part in declared.split(",") if (name := part.strip())))
    digest = hashlib.sha256(f"{request.scope['path']}\n{declared}\n".encode() + body).digest()
    waits = headers.get("x-marft-waiting", "") not in ("", "0", "false")
    return ClientRequest(
        role, chat, asked.count, digest, key, int(counts[0]) if counts else 0, waits, request.path_params["secret"]
    )


async def _streamed(
    request: Request, protocol: Protocol, session: Session, asked: Asked, wanted: ClientRequest
) -> Response:  # fmt: skip
    """Return a streamed response, starting at the first event.

    If the client disconnects, its actions continue.

    Raises:
        RequestError: the request failed before the first event.
    """
    hearing, exchanged, actions = Hearing(), list[Exchange](), list[Begun]()

    async def answer() -> Sequence[Reply]:
        exchange, replies = await _on(session, session.ask(replace(wanted, hearing=hearing)))
        exchanged.append(exchange)
        return list[Reply](replies)

    def answered(replies: Sequence[Reply]) -> None:
        session.kept.setdefault(wanted.role, {}).update(protocol.kept(asked, replies))
        session.loop.call_soon_threadsafe(session.deliver, exchanged[0])

    def about(begun: Sequence[Begun]) -> dict[str, Any]:
        actions[:] = begun
        return _about(asked, begun)

    answering = asyncio.ensure_future(answer())
    texts = Telling(protocol, asked, hearing, about, written, answered=answered).texts(answering)
    first = await unless_gone(request, anext(texts))
    if first is None:
        answering.cancel()
        return Response(status_code=499)  # the client has disconnected
    return EventStream(protocol, texts, _headers(actions), first)


def _about(asked: Asked, actions: Sequence[Begun]) -> dict[str, Any]:
    """Return the response fields about the actions."""
    return {"model": actions[0].policy, "marft": _told(asked, actions)}


def _headers(actions: Sequence[Begun]) -> dict[str, str]:
    return {"x-marft-action": ",".join(quote(action.id) for action in actions)}


def _told(asked: Asked, actions: Sequence[Begun]) -> dict[str, Any]:
    """Return the action ids, the recorded-only and ignored fields, and the reason of a new segment."""
    told: dict[str, Any] = {"actions": [action.id for action in actions], "sees": list(actions[0].sees)}
    if asked.chat.wishes:
        told["recorded_only"] = dict(asked.chat.wishes)
    if asked.ignored:
        told["ignored"] = list(asked.ignored)
    if actions[0].restarted:
        told["new_segment"] = actions[0].restarted
    return told


async def _on(session: Session, coroutine: Any) -> Any:
    """Await a coroutine on the run's event loop.

    Raises:
        RequestError: the event loop has ended.
    """
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, session.loop)
    except RuntimeError:
        coroutine.close()
        raise unknown() from None
    return await asyncio.wrap_future(future)


async def _there(session: Session, function: Callable[..., T], *arguments: object) -> T:
    async def call() -> T:
        return function(*arguments)

    return await _on(session, call())  # type: ignore[no-any-return]


async def _checked(check: Callable[[], None]) -> None:
    """Check the engine's support for the constraint on a thread; compiling a grammar may take a second.

    Raises:
        RequestError: the constraint is not supported.
    """
    try:
        await asyncio.to_thread(check)
    except ChatRefusedError as error:
        raise RequestError.of(error) from error
