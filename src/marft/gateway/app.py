"""The gateway's addresses: ``/e/<secret>/<role>/v1/…`` for clients, ``/e/<secret>/waiting`` for programs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from marft.game.chat import ChatRefusedError, Reply
from marft.gateway.http import Bounds, body_of, gone, no_address, one_by_one, written
from marft.gateway.protocol.anthropic import Messages
from marft.gateway.protocol.chat_completions import ChatCompletions
from marft.gateway.protocol.exchange import Asked, Protocol
from marft.gateway.protocol.responses import Responses
from marft.gateway.refusals import RequestError, unknown
from marft.gateway.session import ClientRequest, Exchange, Session

T = TypeVar("T")
RETRY_COUNTS = ("x-stainless-retry-count", "x-retry-count")
LONGEST_KEY = 256


class App:
    """Answers requests. It lives on the gateway's thread; sessions on the run's event loop.

    Args:
        session_of: of a secret; raises :class:`RequestError` where there is none.
    """

    def __init__(self, session_of: Callable[[str], Session], bounds: Bounds) -> None:
        self.session_of, self.bounds = session_of, bounds
        base = "/e/{secret}/{role}/v1"
        self.asgi = Starlette(
            routes=[
                Route(f"{base}/chat/completions", self._endpoint(ChatCompletions()), methods=["POST"]),
                Route(f"{base}/responses", self._endpoint(Responses()), methods=["POST"]),
                Route(f"{base}/messages", self._endpoint(Messages()), methods=["POST"]),
                Route(f"{base}/models", self._models, methods=["GET"]),
                Route(f"{base}/models/{{model:path}}", self._models, methods=["GET"]),
                Route("/e/{secret}/waiting", self._waiting, methods=["POST"]),
            ],
            exception_handlers={HTTPException: no_address},
        )

    def _endpoint(self, protocol: Protocol) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                return await self._answer(protocol, request)
            except RequestError as error:
                headers = {"x-should-retry": "false"} | ({"connection": "close"} if error.status == 408 else {})
                return JSONResponse(protocol.error(error), error.status, headers)

        return endpoint

    async def _answer(self, protocol: Protocol, request: Request) -> Response:
        session, role = self._session(request), request.path_params["role"]
        body = await body_of(request, self.bounds)
        asked = protocol.read(body, session.kept.get(role, {}))
        wanted = _wanted(request, role, asked, body)
        if asked.chat.constraint:
            await _checked(await _there(session, session.check_of, wanted))
        answered = await _unless_gone(request, _on(session, session.ask(wanted)))
        if answered is None:
            return Response(status_code=499)  # which nobody reads
        exchange, replies = answered
        try:
            session.kept.setdefault(role, {}).update(protocol.kept(asked, replies))
            response = _response(protocol, asked, replies)
        except Exception as error:  # the same request would be an action of its own, and end here as well
            raise RequestError(500, "no_response", "the action is recorded, and no response can say it") from error
        session.loop.call_soon_threadsafe(session.deliver, exchange)
        return response

    async def _models(self, request: Request) -> Response:
        try:
            session, role = self._session(request), request.path_params["role"]
            policy = await _there(session, session.policy_of, role, request.path_params["secret"])
            model = {"id": policy, "object": "model", "created": 0, "owned_by": "marft"}
            named = request.path_params.get("model")
            if named not in (None, policy):
                raise RequestError(404, "model_not_found", f"the policy of {role} is called {policy!r}", "model")
            return JSONResponse(model if named else {"object": "list", "data": [model]})
        except RequestError as error:
            return JSONResponse(ChatCompletions().error(error), error.status)

    async def _waiting(self, request: Request) -> Response:
        try:
            session = self._session(request)
            await _there(session, session.wait, request.path_params["secret"])
            return Response(status_code=204)
        except RequestError as error:
            return JSONResponse(ChatCompletions().error(error), error.status)

    def _session(self, request: Request) -> Session:
        return self.session_of(request.path_params["secret"])


def _wanted(request: Request, role: str, asked: Asked, body: bytes) -> ClientRequest:
    """The request as its session takes it.

    Raises:
        RequestError: a header cannot be read.
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


def _response(protocol: Protocol, asked: Asked, replies: list[Reply]) -> Response:
    """What a client is told of its actions, written down before any of it is sent."""
    told = {"model": replies[0].action.policy, "marft": _told(asked, replies)}
    headers = {"x-marft-action": ",".join(quote(reply.action.id) for reply in replies)}
    if asked.stream:
        events = list(map(written, protocol.events(asked, replies, told)))
        return StreamingResponse(one_by_one(events), headers=headers, media_type="text/event-stream")
    return JSONResponse(protocol.response(asked, replies, told), headers=headers)


def _told(asked: Asked, replies: list[Reply]) -> dict[str, Any]:
    """What a response says of its actions: their names, what was asked for and only recorded, how they went on."""
    actions = [reply.action for reply in replies]
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
        RequestError: that has ended.
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
    """Look, on a thread, whether an answer can be held to what is asked for: to compile a grammar may take a second.

    Raises:
        RequestError: it cannot.
    """
    try:
        await asyncio.to_thread(check)
    except ChatRefusedError as error:
        raise RequestError.of(error) from error


async def _unless_gone(
    request: Request, answer: Awaitable[tuple[Exchange, list[Reply]]]
) -> tuple[Exchange, list[Reply]] | None:
    """The answer; None where the client has gone before: then nobody waits for it any more."""
    answering = asyncio.ensure_future(answer)
    watching = asyncio.ensure_future(gone(request))
    try:
        await asyncio.wait([answering, watching], return_when=asyncio.FIRST_COMPLETED)
        return await answering if answering.done() else None
    finally:
        for task in (answering, watching):
            task.cancel()
        await asyncio.gather(answering, watching, return_exceptions=True)
