"""The gateway's addresses: ``/e/<secret>/<role>/v1/…`` for clients, ``/e/<secret>/waiting`` for programs."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from marft.game.chat import ChatRefusedError, Reply
from marft.gateway.protocol.anthropic import Messages
from marft.gateway.protocol.chat_completions import ChatCompletions
from marft.gateway.protocol.exchange import Asked, Event, Protocol
from marft.gateway.protocol.responses import Responses
from marft.gateway.refusals import RequestError, unknown
from marft.gateway.session import ClientRequest, Exchange, Session

T = TypeVar("T")
RETRY_COUNTS = ("x-stainless-retry-count", "x-retry-count")
LONGEST_KEY = 256


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request may take of the gateway.

    Args:
        body_bytes: of its body.
        body_seconds: for all of that to come.
    """

    body_bytes: int = 4 * 2**20
    body_seconds: float = 30.0


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
            exception_handlers={HTTPException: _no_address},
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
        body = await self._body(request)
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

    async def _body(self, request: Request) -> bytes:
        """All of a request's body.

        Raises:
            RequestError: it is too large, or comes too slowly.
        """
        most, body = self.bounds.body_bytes, bytearray()
        too_large = RequestError(413, "request_too_large", f"a request has at most {most} bytes")
        with suppress(ValueError):
            if int(request.headers.get("content-length", "0")) > most:
                raise too_large
        try:
            async with asyncio.timeout(self.bounds.body_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            seconds = f"{self.bounds.body_seconds:g} s"
            raise RequestError(408, "request_timeout", f"the body did not come in {seconds}") from None
        except ClientDisconnect:
            raise RequestError(400, "invalid_value", "the body ended before it was whole") from None
        return bytes(body)


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
    digest = hashlib.sha256(f"{role}\n{request.scope['path']}\n{declared}\n".encode() + body).digest()
    waits = headers.get("x-marft-waiting", "") not in ("", "0", "false")
    return ClientRequest(
        role, chat, asked.count, digest, key, int(counts[0]) if counts else 0, waits, request.path_params["secret"]
    )


def _response(protocol: Protocol, asked: Asked, replies: list[Reply]) -> Response:
    """What a client is told of its actions, written down before any of it is sent."""
    told = {"model": replies[0].action.policy, "marft": _told(asked, replies)}
    headers = {"x-marft-action": ",".join(quote(reply.action.id) for reply in replies)}
    if asked.stream:
        events = list(map(_written, protocol.events(asked, replies, told)))
        return StreamingResponse(_one_by_one(events), headers=headers, media_type="text/event-stream")
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
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait([answering, watching], return_when=asyncio.FIRST_COMPLETED)
        return await answering if answering.done() else None
    finally:
        for task in (answering, watching):
            task.cancel()
        await asyncio.gather(answering, watching, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _written(event: Event) -> str:
    name, said = event
    data = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False, allow_nan=False)
    return (f"event: {name}\n" if name else "") + f"data: {data}\n\n"


async def _one_by_one(texts: list[str]) -> AsyncIterator[str]:
    for text in texts:
        yield text
        await asyncio.sleep(0)


async def _no_address(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refusal = unknown() if error.status_code == 404 else RequestError(error.status_code, "not_allowed", error.detail)
    body: Mapping[str, Any] = ChatCompletions().error(refusal)
    return JSONResponse(body, refusal.status, error.headers)
