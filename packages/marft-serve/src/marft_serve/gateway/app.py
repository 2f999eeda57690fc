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
from marft.agents.streaming import ActionStart
from marft_serve.gateway.errors import RequestError, not_found_error
from marft_serve.gateway.http import (
    METHODS,
    BodyLimits,
    EventStream,
    build_endpoint,
    build_error_handler,
    cancel_on_disconnect,
    format_event,
    get_protocol,
    parse_request,
    read_body,
    unsupported_path_error,
)
from marft_serve.gateway.protocol.anthropic import CountTokensRequest, Messages
from marft_serve.gateway.protocol.base import ParsedRequest, Protocol
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.protocol.responses import Responses
from marft_serve.gateway.session import ClientRequest, Exchange, Session
from marft_serve.gateway.stream_buffer import StreamBuffer, StreamResponse

T = TypeVar("T")
RETRY_HEADERS = ("x-stainless-retry-count", "x-retry-count")
MAX_KEY_CHARS = 256
WAITING = "waiting"
SUPPORTED_PATHS = ("chat/completions", "responses", "messages", "messages/count_tokens", "models")


class App:
    """ASGI application of the gateway.

    It runs on the gateway's thread. Sessions run on the run's event loop.

    Args:
        get_session: function from a secret to its session; raises :class:`RequestError` for an unknown secret.
        body_limits: limits on request bodies.
    """

    def __init__(self, get_session: Callable[[str], Session], body_limits: BodyLimits) -> None:
        self.get_session, self.body_limits = get_session, body_limits
        base = "/e/{secret}/{role}/v1"
        self.asgi = Starlette(
            routes=[
                Route(f"{base}/chat/completions", self._build_endpoint(ChatCompletions()), methods=["POST"]),
                Route(f"{base}/responses", self._build_endpoint(Responses()), methods=["POST"]),
                Route(f"{base}/messages", self._build_endpoint(Messages()), methods=["POST"]),
                Route(
                    f"{base}/messages/count_tokens",
                    build_endpoint(Messages(CountTokensRequest), self._count_tokens, get_error_headers),
                    methods=["POST"],
                ),
                Route(
                    f"{base}/models",
                    build_endpoint(ChatCompletions(), self._list_models, get_error_headers),
                    methods=["GET"],
                ),
                Route(
                    f"{base}/models/{{model:path}}",
                    build_endpoint(ChatCompletions(), self._list_models, get_error_headers),
                    methods=["GET"],
                ),
                Route(
                    f"/e/{{secret}}/{WAITING}",
                    build_endpoint(ChatCompletions(), self._report_waiting, get_error_headers),
                    methods=["POST"],
                ),
                Route("/e/{secret}/{role}", self._handle_unsupported, methods=METHODS),
                Route("/e/{secret}/{role}/{path:path}", self._handle_unsupported, methods=METHODS),
            ],
            exception_handlers={HTTPException: build_error_handler(not_found_error)},
        )
        self.asgi.router.redirect_slashes = False  # an unknown address stays unknown with a trailing slash

    def _build_endpoint(self, protocol: Protocol) -> Callable[[Request], Awaitable[Response]]:
        return build_endpoint(protocol, partial(self._answer, protocol), get_error_headers)

    async def _answer(self, protocol: Protocol, request: Request) -> Response:
        session, role = self._get_session(request), request.path_params["role"]
        body = await read_body(request, self.body_limits)
        parsed_request = await parse_request(protocol, body, session.conversations.get(role, {}))
        client_request = _build_client_request(request, role, parsed_request, body)
        if parsed_request.chat.constraint:
            await _run_check(await _call_on_loop(session, session.build_constraint_check, client_request))
        if parsed_request.stream:
            return await _stream_response(request, protocol, session, parsed_request, client_request)
        result = await cancel_on_disconnect(request, _run_on_loop(session, session.answer(client_request)))
        if result is None:
            return Response(status_code=499)  # the client has disconnected
        exchange, replies = result
        try:
            session.conversations.setdefault(role, {}).update(protocol.conversations_to_store(parsed_request, replies))
            started_actions = [ActionStart.from_action(reply.action) for reply in replies]
            response = JSONResponse(
                protocol.build_response(parsed_request, replies, _describe_actions(parsed_request, started_actions)),
                headers=_get_action_headers(started_actions),
            )
        except Exception as error:  # a retry would be a new action and fail in the same way
            raise RequestError(500, "no_response", "the action is recorded, and no response can say it") from error
        session.loop.call_soon_threadsafe(session.deliver, exchange)
        return response

    async def _count_tokens(self, request: Request) -> Response:
        session = self._get_session(request)
        body = await read_body(request, self.body_limits)
        client_request = _build_client_request(
            request, request.path_params["role"], await parse_request(Messages(CountTokensRequest), body), body
        )
        return JSONResponse({"input_tokens": await _call_on_loop(session, session.count_tokens, client_request)})

    async def _handle_unsupported(self, request: Request) -> Response:
        return await build_endpoint(get_protocol(request.url.path), self._reject_path, get_error_headers)(request)

    async def _reject_path(self, request: Request) -> Response:
        role, path = request.path_params["role"], request.path_params.get("path", "")
        session = self._get_session(request)
        if role == WAITING and not path:
            raise RequestError(405, "not_allowed", "Method Not Allowed")
        await _call_on_loop(session, session.get_policy, role, request.path_params["secret"])
        if path.removeprefix("v1/") in SUPPORTED_PATHS and path.startswith("v1/"):
            raise RequestError(405, "not_allowed", "Method Not Allowed")
        raise unsupported_path_error(
            path.removeprefix("v1/"), ", ".join(f"v1/{supported}" for supported in SUPPORTED_PATHS)
        )

    async def _list_models(self, request: Request) -> Response:
        session, role = self._get_session(request), request.path_params["role"]
        policy = await _call_on_loop(session, session.get_policy, role, request.path_params["secret"])
        model = {"id": policy, "object": "model", "created": 0, "owned_by": "marft"}
        model_name = request.path_params.get("model")
        if model_name not in (None, policy):
            raise RequestError(404, "model_not_found", f"the policy of {role} is called {policy!r}", "model")
        return JSONResponse(model if model_name else {"object": "list", "data": [model]})

    async def _report_waiting(self, request: Request) -> Response:
        session = self._get_session(request)
        await _call_on_loop(session, session.set_waiting, request.path_params["secret"])
        return Response(status_code=204)

    def _get_session(self, request: Request) -> Session:
        return self.get_session(request.path_params["secret"])


def get_error_headers(error: RequestError) -> dict[str, str]:
    """Return headers for an error response; clients should not retry, because the retry would fail too."""
    return {"x-should-retry": "false"} | ({"connection": "close"} if error.status == 408 else {})


def _build_client_request(request: Request, role: str, parsed_request: ParsedRequest, body: bytes) -> ClientRequest:
    """Convert an HTTP request to a request to the session.

    Raises:
        RequestError: a header is invalid.
    """
    headers = request.headers
    counts = [headers[name] for name in RETRY_HEADERS if name in headers]
    if any(not count.isdecimal() or len(count) > 4 for count in counts):
        raise RequestError(400, "invalid_value", "the count of retries must be a number", RETRY_HEADERS[0])
    key = headers.get("idempotency-key", "")
    if len(key) > MAX_KEY_CHARS:
        raise RequestError(400, "invalid_value", f"an idempotency key has at most {MAX_KEY_CHARS} characters")
    chat, declared = parsed_request.chat, headers.get("x-marft-sees")
    if declared is not None:
        chat = replace(chat, sees=tuple(unquote(name) for part in declared.split(",") if (name := part.strip())))
    digest = hashlib.sha256(f"{request.scope['path']}\n{declared}\n".encode() + body).digest()
    waits = headers.get("x-marft-waiting", "") not in ("", "0", "false")
    return ClientRequest(
        role,
        chat,
        parsed_request.count,
        digest,
        key,
        int(counts[0]) if counts else 0,
        waits,
        request.path_params["secret"],
    )


async def _stream_response(
    request: Request, protocol: Protocol, session: Session, parsed_request: ParsedRequest, client_request: ClientRequest
) -> Response:
    """Return a streamed response, starting at the first event.

    If the client disconnects, its actions continue.

    Raises:
        RequestError: the request failed before the first event.
    """
    buffer, exchanges, actions = StreamBuffer(), list[Exchange](), list[ActionStart]()

    async def answer() -> Sequence[Reply]:
        exchange, replies = await _run_on_loop(session, session.answer(replace(client_request, stream_buffer=buffer)))
        exchanges.append(exchange)
        return list[Reply](replies)

    def on_complete(replies: Sequence[Reply]) -> None:
        session.conversations.setdefault(client_request.role, {}).update(
            protocol.conversations_to_store(parsed_request, replies)
        )
        session.loop.call_soon_threadsafe(session.deliver, exchanges[0])

    def describe(started_actions: Sequence[ActionStart]) -> dict[str, Any]:
        actions[:] = started_actions
        return _describe_actions(parsed_request, started_actions)

    answer_task = asyncio.ensure_future(answer())
    texts = StreamResponse(
        protocol, parsed_request, buffer, describe, format_event, on_complete=on_complete
    ).iter_texts(answer_task)
    first = await cancel_on_disconnect(request, anext(texts))
    if first is None:
        answer_task.cancel()
        return Response(status_code=499)  # the client has disconnected
    return EventStream(protocol, texts, _get_action_headers(actions), first)


def _describe_actions(parsed_request: ParsedRequest, actions: Sequence[ActionStart]) -> dict[str, Any]:
    """Return the response fields about the actions."""
    return {"model": actions[0].policy, "marft": _build_metadata(parsed_request, actions)}


def _get_action_headers(actions: Sequence[ActionStart]) -> dict[str, str]:
    return {"x-marft-action": ",".join(quote(action.id) for action in actions)}


def _build_metadata(parsed_request: ParsedRequest, actions: Sequence[ActionStart]) -> dict[str, Any]:
    """Return the action ids, the recorded-only and ignored fields, and the reason of a new segment."""
    metadata: dict[str, Any] = {"actions": [action.id for action in actions], "sees": list(actions[0].sees)}
    if parsed_request.chat.recorded_options:
        metadata["recorded_only"] = dict(parsed_request.chat.recorded_options)
    if parsed_request.ignored:
        metadata["ignored"] = list(parsed_request.ignored)
    if actions[0].restart_reason:
        metadata["new_segment"] = actions[0].restart_reason
    return metadata


async def _run_on_loop(session: Session, coroutine: Any) -> Any:
    """Await a coroutine on the run's event loop.

    Raises:
        RequestError: the event loop has ended.
    """
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, session.loop)
    except RuntimeError:
        coroutine.close()
        raise not_found_error() from None
    return await asyncio.wrap_future(future)


async def _call_on_loop(session: Session, function: Callable[..., T], *arguments: object) -> T:
    async def call() -> T:
        return function(*arguments)

    return await _run_on_loop(session, call())  # type: ignore[no-any-return]


async def _run_check(check: Callable[[], None]) -> None:
    """Check the engine's support for the constraint on a thread; compiling a grammar may take a second.

    Raises:
        RequestError: the constraint is not supported.
    """
    try:
        await asyncio.to_thread(check)
    except ChatRefusedError as error:
        raise RequestError.from_chat_error(error) from error
