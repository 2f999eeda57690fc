"""Session for one episode: its secret, its agent handles by role, and its pending and answered requests.

A session runs on the run's event loop. It holds the engine's external wait while the program may send more
requests. The engine then admits no requests in order until every session has a pending request, waits for something
else, or has ended.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from marft.agents.agents import TeamAgentHandle, TeamAgents
from marft.agents.chat import Chat, ChatRefusedError, Reply
from marft.agents.chat_history import check_constraint, count_chat_tokens
from marft.agents.prompt_messages import Renderer
from marft.agents.streaming import TokenStream
from marft.common.log import get_logger
from marft.common.types import Observation
from marft_serve.gateway.errors import (
    RequestError,
    convert_chat_errors,
    episode_closed_error,
    episode_limit_error,
    not_found_error,
)
from marft_serve.gateway.protocol.parsing import ClientMessage
from marft_serve.gateway.stream_buffer import StreamBuffer

logger = get_logger(__name__)
GRACE_SECONDS = 0.5  # timeout for cancelled requests to finish


class Budget:
    """Sampling budget for an episode, in tokens.

    Requests reserve tokens before sampling and release the unused rest, so concurrent requests cannot spend the
    same tokens. All methods run on one event loop.

    Args:
        limit: maximum number of sampled tokens; 0 means no limit.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._spent = self._reserved = 0
        self._lock = asyncio.Lock()  # requests reserve in the order of arrival
        self._released = asyncio.Event()

    @property
    def remaining(self) -> int:
        """Tokens neither reserved nor spent."""
        return self.limit - self._spent - self._reserved

    async def reserve(self, actions: int, max_tokens: int) -> int:
        """Reserve tokens for ``actions`` actions; return the maximum for each action.

        The maximum is ``max_tokens``, or an equal share of the remaining tokens. If tokens reserved by other requests
        leave too few, wait for their release.

        Args:
            actions: number of actions of the request.
            max_tokens: requested maximum length of an action, in tokens.

        Raises:
            RequestError: less than one token per action remains.
        """
        if not self.limit:
            return max_tokens
        async with self._lock:
            while self._reserved and self.remaining < actions * max_tokens:
                self._released.clear()
                await self._released.wait()
            share = min(max_tokens, self.remaining // actions)
            if share < 1:
                raise episode_limit_error("tokens", self.limit)
            self._reserved += actions * share
            return share

    def release(self, reserved: int, sampled: int) -> None:
        """Release a reservation and count sampled tokens against the budget.

        Args:
            reserved: number of reserved tokens.
            sampled: number of sampled tokens.
        """
        self._spent += sampled
        self._reserved -= reserved if self.limit else 0
        self._released.set()


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """Request of a client.

    Args:
        role: role of the agent.
        chat: the chat to answer.
        count: number of actions.
        digest: hash of the whole request.
        key: the client's idempotency key; "" without one.
        retry: number of earlier attempts.
        waits: True if the program announces that it then waits for something else.
        secret: secret in the request's URL.
        stream_buffer: buffer for a streamed response; None without streaming.
    """

    role: str
    chat: Chat
    count: int = 1
    digest: bytes = b""
    key: str = ""
    retry: int = 0
    waits: bool = False
    secret: str = ""
    stream_buffer: StreamBuffer | None = None


@dataclass(slots=True, eq=False)
class Exchange:
    """Request with its actions; retries share one exchange.

    Args:
        request: the first request.
        actions: task that returns the replies.
        live_actions: the actions in progress, for a streamed response; empty otherwise.
    """

    request: ClientRequest
    actions: asyncio.Task[list[Reply]]
    live_actions: Sequence[TokenStream]
    seen_retries: set[int] = field(default_factory=set)  # retry counts received so far
    num_waiting: int = 0

    @property
    def is_pending(self) -> bool:
        """True while a client waits for the actions."""
        return self.num_waiting > 0 and not self.actions.done()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an episode.

    Args:
        max_tokens: maximum number of sampled tokens over all agents; limits the length of each action. 0: no limit.
        max_requests: maximum number of requests. 0: no limit.
        wait_seconds: maximum idle time of a program before requests of other episodes proceed, in seconds.
    """

    max_tokens: int = 0
    max_requests: int = 0
    wait_seconds: float = 60.0


class Session:
    """Requests of one episode.

    All methods run on the run's event loop, except for access to ``secret`` and ``conversations``. ``conversations``
    has the conversations up to each response, by response id. Each step has its own secret, so processes left from an
    earlier step cannot act.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.secret = ""
        self.secrets: list[str] = []  # secrets of all steps so far
        self.loop = asyncio.get_running_loop()
        self.wait_timeouts = 0  # number of times that others stopped waiting for the program
        self.conversations: dict[
            str, dict[str, tuple[ClientMessage, ...]]
        ] = {}  # by role; only for the gateway's thread
        self._agents: TeamAgents | None = None
        self._observation = Observation("")
        self._in_flight: set[Exchange] = set()
        self._by_key: dict[tuple[str, str], Exchange] = {}  # by role and idempotency key
        self._by_digest: dict[bytes, list[Exchange]] = {}  # by digest, for retries without a key
        self._request_count = 0
        self._budget = Budget(limits.max_tokens)
        self._external_wait: Callable[[], AbstractContextManager[None]] | None = None
        self._wait_stack, self._holds_wait = ExitStack(), False
        self._is_waiting = False
        self._idle_timer: asyncio.TimerHandle | None = None

    def renew_secret(self) -> None:
        """Create a new secret for the next step."""
        self.secret = secrets.token_urlsafe(24)
        self.secrets.append(self.secret)

    def begin_step(self, agents: TeamAgents, observation: Observation) -> None:
        """Start a step; its program may send requests from now on."""
        self._agents, self._observation = agents, observation
        self._external_wait, self._is_waiting = agents.external_context().external_wait, False
        self._by_key, self._by_digest = {}, {}  # requests of an earlier step are not answered again
        self._update_wait()

    async def end_step(self) -> None:
        """End the step after its program; cancel pending requests."""
        self._agents = None
        pending = [exchange.actions for exchange in self._in_flight]
        self.close()
        if pending:
            await asyncio.wait(pending, timeout=GRACE_SECONDS)

    def close(self) -> None:
        """Reject further requests and cancel pending requests."""
        self._agents = None
        for exchange in self._in_flight:
            exchange.actions.cancel()
        self._update_wait()

    def set_waiting(self, secret: str) -> None:
        """Stop waiting for the program until its next request.

        Raises:
            RequestError: the step is over.
        """
        self._get_agents(secret)
        self._is_waiting = True
        self._update_wait()

    def get_policy(self, role: str, secret: str) -> str:
        """Return a role's policy.

        Raises:
            RequestError: the episode is over, or has no such role.
        """
        return self._get_handle(role, secret).agent.policy

    def count_tokens(self, request: ClientRequest) -> int:
        """Return the number of tokens in a chat after the agent's template.

        Raises:
            RequestError: the episode is over or has no such role, or the chat cannot be rendered.
        """
        renderer, policy = self._get_renderer(request)
        with convert_chat_errors():
            return count_chat_tokens(renderer, policy, request.chat)

    def build_constraint_check(self, request: ClientRequest) -> Callable[[], None]:
        """Return a function that checks a request's constraint against the engine.

        The function may run on any thread, and may take long. Its result is cached for the request.

        Raises:
            RequestError: the episode is over, or has no such role.
        """
        return partial(check_constraint, *self._get_renderer(request), request.chat)

    async def answer(self, request: ClientRequest) -> tuple[Exchange, list[Reply]]:
        """Return a request's exchange and replies; a retry gets the first attempt's replies.

        If the caller is cancelled, the actions continue.

        Raises:
            RequestError: the request failed or was rejected.
        """
        exchange = self._find_exchange(request) or self._start_exchange(request)
        exchange.seen_retries.add(request.retry)
        exchange.num_waiting += 1
        if request.stream_buffer:
            request.stream_buffer.subscribe(exchange.live_actions)
        self._is_waiting = False
        self._update_wait()
        try:
            replies = await asyncio.shield(exchange.actions)
            self._is_waiting = request.waits
            return exchange, replies
        except asyncio.CancelledError:
            if exchange.actions.cancelled():
                raise episode_closed_error() from None
            raise
        except ChatRefusedError as error:
            raise RequestError.from_chat_error(error) from error
        except RequestError:
            raise
        except Exception as error:  # the episode fails with this error and reports it
            logger.exception("an action of %s failed, and its episode with it", request.role)
            raise RequestError(500, "episode_failed", "the action failed, and the episode with it") from error
        finally:
            exchange.num_waiting -= 1
            self._update_wait()

    def _get_agents(self, secret: str) -> TeamAgents:
        if self._agents is None or secret != self.secret:
            raise episode_closed_error()
        return self._agents

    def _get_renderer(self, request: ClientRequest) -> tuple[Renderer, str]:
        """Return the renderer for a request, and the policy of its role."""
        policy = self._get_handle(request.role, request.secret).agent.policy
        renderer = self._get_agents(request.secret).external_context().renderer
        assert renderer is not None, "seats of a game have one"
        return renderer, policy

    def _get_handle(self, role: str, secret: str) -> TeamAgentHandle:
        handle = next((candidate for candidate in self._get_agents(secret) if candidate.role == role), None)
        if handle is None:
            raise not_found_error()
        return handle

    def deliver(self, exchange: Exchange) -> None:
        """Mark a response as started; a later request with the same content and no key is a new request."""
        self._forget_exchange(exchange)

    def _find_exchange(self, request: ClientRequest) -> Exchange | None:
        """Return the exchange from an earlier attempt, if any.

        Attempts may arrive out of order.
        """
        self._get_handle(request.role, request.secret)
        if request.key:
            keyed = self._by_key.get((request.role, request.key))
            if keyed and keyed.request.digest != request.digest:
                raise RequestError(400, "idempotency_error", "this idempotency key belongs to another request")
            return keyed
        identical = self._by_digest.get(request.digest, [])
        matching = [exchange for exchange in identical if request.retry not in exchange.seen_retries]
        repeated = identical if request.retry else []
        return min(
            [*matching, *repeated],
            key=lambda exchange: (request.retry in exchange.seen_retries, exchange.num_waiting > 0),
            default=None,
        )

    def _start_exchange(self, request: ClientRequest) -> Exchange:
        handle = self._get_handle(request.role, request.secret)
        if self.limits.max_requests and self._request_count + request.count > self.limits.max_requests:
            raise episode_limit_error("requests", self.limits.max_requests)
        self._request_count += request.count
        live_actions = [TokenStream() for _ in range(request.count)] if request.stream_buffer else []
        exchange = Exchange(
            request, asyncio.ensure_future(self._run_actions(handle, request, live_actions)), live_actions
        )
        exchange.actions.add_done_callback(lambda _: self._finish_exchange(exchange))
        self._in_flight.add(exchange)
        if request.key:
            self._by_key[request.role, request.key] = exchange
        else:
            self._by_digest.setdefault(request.digest, []).append(exchange)
        return exchange

    async def _run_actions(
        self, handle: TeamAgentHandle, request: ClientRequest, live_actions: Sequence[TokenStream]
    ) -> list[Reply]:
        max_tokens, replies = handle.agent.sampling.max_new_tokens, list[Reply]()
        share = await self._budget.reserve(request.count, min(max_tokens, request.chat.max_tokens or max_tokens))
        chat = replace(request.chat, max_tokens=share) if self.limits.max_tokens else request.chat
        try:
            chats = [replace(chat, token_stream=live) for live in live_actions] or [chat] * request.count
            pending = [handle.reply(self._observation, chat) for chat in chats]
            replies = [await pending[0]] if request.count == 1 else list(await asyncio.gather(*pending))
        finally:
            sampled = sum(len(reply.action.tokens) for reply in replies)
            self._budget.release(request.count * share, sampled)
        return replies

    def _finish_exchange(self, exchange: Exchange) -> None:
        self._in_flight.discard(exchange)
        failed = exchange.actions.cancelled() or exchange.actions.exception() is not None
        if failed:  # no action was recorded, so a retry is allowed
            self._request_count -= exchange.request.count
            key = exchange.request.role, exchange.request.key
            if self._by_key.get(key) is exchange:
                del self._by_key[key]
            self._forget_exchange(exchange)
        self._update_wait()

    def _forget_exchange(self, exchange: Exchange) -> None:
        remaining = [
            candidate for candidate in self._by_digest.pop(exchange.request.digest, []) if candidate is not exchange
        ]
        if remaining:
            self._by_digest[exchange.request.digest] = remaining

    def _update_wait(self) -> None:
        """Hold the external wait while the program may send more requests, up to the maximum idle time."""
        busy = (
            self._agents is not None
            and not self._is_waiting
            and not any(exchange.is_pending for exchange in self._in_flight)
        )
        if busy == self._holds_wait:
            return
        self._holds_wait = busy
        if busy:
            assert self._external_wait is not None, "a step has begun"
            self._wait_stack.enter_context(self._external_wait())
            self._idle_timer = self.loop.call_later(self.limits.wait_seconds, self._on_idle_timeout)
        else:
            self._wait_stack.close()
            if self._idle_timer:
                self._idle_timer.cancel()

    def _on_idle_timeout(self) -> None:
        self.wait_timeouts += 1
        self._is_waiting = True
        self._update_wait()
