"""Gateway: one HTTP server per process, on a separate thread, while its episodes run.

The routes are ``/e/<secret>/<role>/v1/…`` for clients, and ``/e/<secret>/waiting`` for programs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TypeVar
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from marft.agents.chat import Reply
from marft.agents.streaming import ActionStart
from marft_serve.gateway.client import WAITING
from marft_serve.gateway.errors import (
    RequestError,
    convert_chat_errors,
    episode_closed_error,
    invalid_error,
    not_found_error,
)
from marft_serve.gateway.http import (
    METHODS,
    BodyLimits,
    EventStream,
    ModelApi,
    build_models_response,
    cancel_on_disconnect,
    get_protocol,
    parse_request,
    read_body,
    unsupported_path_error,
)
from marft_serve.gateway.listener import Listener
from marft_serve.gateway.protocol.base import Metadata, ParsedRequest, Protocol
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.session import ClientRequest, Exchange, Session
from marft_serve.gateway.stream_buffer import StreamBuffer, StreamResponse

T = TypeVar("T")
RETRY_HEADERS = ("x-stainless-retry-count", "x-retry-count")
MAX_KEY_CHARS = 256
MAX_CLOSED_SESSIONS = 10_000  # number of closed sessions to remember, for a specific error message


class Gateway(ModelApi):
    """HTTP server with a route to each client's session. Call :meth:`close` at the end.

    It runs on the gateway's thread. Sessions run on the run's event loop.

    Args:
        host: host to listen on.
        port: port to listen on; 0 selects a free port.
        body_limits: limits on request bodies.
        address: public URL for clients; "" for the host and port.

    Raises:
        ValueError: the server cannot listen on this host and port.
    """

    def __init__(self, host: str, port: int, body_limits: BodyLimits, address: str = "") -> None:
        routes = [
            Route(
                f"/e/{{secret}}/{WAITING}",
                self.build_endpoint(ChatCompletions(), self._report_waiting),
                methods=["POST"],
            ),
            Route("/e/{secret}/{role}", self._reject_path, methods=METHODS),
            Route("/e/{secret}/{role}/{path:path}", self._reject_path, methods=METHODS),
        ]
        super().__init__("/e/{secret}/{role}/v1", routes, body_limits)
        self.wait_timeouts = 0
        self._sessions: dict[str, Session] = {}
        self._closed: deque[str] = deque(maxlen=MAX_CLOSED_SESSIONS)
        self._listener = Listener(self.asgi, host, port, "team: the gateway")
        self.address, self.port = address.rstrip("/") or self._listener.address, self._listener.port

    def open_session(self, session: Session) -> str:
        """Route clients to a session; return the session's URL."""
        self._sessions[session.secret] = session
        return f"{self.address}/e/{session.secret}"

    def end_step(self, session: Session) -> None:
        """Stop routing to the session's current secret at the end of a step."""
        if self._sessions.pop(session.secret, None):
            self._closed.append(session.secret)

    def remove_session(self, session: Session) -> None:
        """Remove the session after its episode."""
        self.end_step(session)
        self.wait_timeouts += session.wait_timeouts

    def counts(self) -> dict[str, float]:
        """Return timeout counts by metric name."""
        return {"gateway/idle_timeouts": float(self.wait_timeouts)}

    def close(self) -> None:
        """Stop the server and cut open connections."""
        self._listener.close()

    def not_found_error(self) -> RequestError:
        return not_found_error()

    async def answer(self, protocol: Protocol, request: Request) -> Response:
        session, role = self._get_session(request), request.path_params["role"]
        body = await read_body(request, self.body_limits)
        parsed_request = await parse_request(protocol, body, session.conversations.get(role, {}))
        client_request = _build_client_request(request, role, parsed_request, body)
        if parsed_request.chat.constraint:
            check = await _call_on_loop(session, session.build_constraint_check, client_request)
            with convert_chat_errors():
                await asyncio.to_thread(check)  # compiling a grammar may take a second
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

    async def count_tokens(self, protocol: Protocol, request: Request) -> Response:
        session = self._get_session(request)
        body = await read_body(request, self.body_limits)
        client_request = _build_client_request(
            request, request.path_params["role"], await parse_request(protocol, body), body
        )
        return JSONResponse({"input_tokens": await _call_on_loop(session, session.count_tokens, client_request)})

    async def list_models(self, protocol: Protocol, request: Request) -> Response:  # noqa: ARG002
        session, role = self._get_session(request), request.path_params["role"]
        policy = await _call_on_loop(session, session.get_policy, role, request.path_params["secret"])
        missing = f"the policy of {role} is called {policy!r}"
        return build_models_response([policy], request.path_params.get("model"), missing)

    async def _report_waiting(self, request: Request) -> Response:
        session = self._get_session(request)
        await _call_on_loop(session, session.set_waiting, request.path_params["secret"])
        return Response(status_code=204)

    async def _reject_path(self, request: Request) -> Response:
        async def reject(request: Request) -> Response:
            role, path = request.path_params["role"], request.path_params.get("path", "")
            session = self._get_session(request)
            if role == WAITING and not path:
                raise RequestError(405, "not_allowed", "Method Not Allowed")
            await _call_on_loop(session, session.get_policy, role, request.path_params["secret"])
            raise unsupported_path_error(path)

        return await self.build_endpoint(get_protocol(request.url.path), reject)(request)

    def _get_session(self, request: Request) -> Session:
        secret = request.path_params["secret"]
        session = self._sessions.get(secret)
        if session is None:
            raise episode_closed_error() if secret in self._closed else not_found_error()
        return session


def _build_client_request(request: Request, role: str, parsed_request: ParsedRequest, body: bytes) -> ClientRequest:
    """Convert an HTTP request to a request to the session.

    Raises:
        RequestError: a header is invalid.
    """
    headers = request.headers
    counts = [headers[name] for name in RETRY_HEADERS if name in headers]
    if any(not count.isdecimal() or len(count) > 4 for count in counts):
        raise invalid_error("the count of retries must be a number", RETRY_HEADERS[0])
    key = headers.get("idempotency-key", "")
    if len(key) > MAX_KEY_CHARS:
        raise invalid_error(f"an idempotency key has at most {MAX_KEY_CHARS} characters")
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

    def describe(started_actions: Sequence[ActionStart]) -> Metadata:
        actions[:] = started_actions
        return _describe_actions(parsed_request, started_actions)

    answer_task = asyncio.ensure_future(answer())
    texts = StreamResponse(protocol, parsed_request, buffer, describe, on_complete=on_complete).iter_texts(answer_task)
    first = await cancel_on_disconnect(request, anext(texts))
    if first is None:
        answer_task.cancel()
        return Response(status_code=499)  # the client has disconnected
    return EventStream(protocol, texts, _get_action_headers(actions), first)


def _get_action_headers(actions: Sequence[ActionStart]) -> dict[str, str]:
    return {"x-marft-action": ",".join(quote(action.id) for action in actions)}


def _describe_actions(parsed_request: ParsedRequest, actions: Sequence[ActionStart]) -> Metadata:
    """Return the policy, the action ids, the recorded-only and ignored fields, and the reason of a new segment."""
    marft: dict[str, object] = {"actions": [action.id for action in actions], "sees": list(actions[0].sees)}
    if parsed_request.chat.recorded_options:
        marft["recorded_only"] = dict(parsed_request.chat.recorded_options)
    if parsed_request.ignored:
        marft["ignored"] = list(parsed_request.ignored)
    if actions[0].restart_reason:
        marft["new_segment"] = actions[0].restart_reason
    return {"model": actions[0].policy, "marft": marft}


async def _run_on_loop(session: Session, coroutine: Coroutine[None, None, T]) -> T:
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

    return await _run_on_loop(session, call())
