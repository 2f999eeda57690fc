"""Session for one episode: its secret, its agent handles by role, and its pending and answered requests.

A session runs on the run's event loop. It holds the engine's external wait while the program may send more
requests. The engine then admits no requests in order until every session has a pending request, waits for something
else, or has ended.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from marft.agents.agents import Agents, Seat
from marft.agents.chat import Chat, ChatRefusedError, Reply
from marft.agents.chat_counting import tokens_of
from marft.agents.chat_record import check_constraint
from marft.agents.live import Live
from marft.common.types import Observation
from marft_serve.gateway.budget import Budget
from marft_serve.gateway.hearing import Hearing
from marft_serve.gateway.protocol.reading import Said
from marft_serve.gateway.refusals import RequestError, closed, spent, unknown

GRACE_SECONDS = 0.5  # timeout for cancelled requests to finish


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
        hearing: buffer for a streamed response; None without streaming.
    """

    role: str
    chat: Chat
    count: int = 1
    digest: bytes = b""
    key: str = ""
    retry: int = 0
    waits: bool = False
    secret: str = ""
    hearing: Hearing | None = None


@dataclass(slots=True, eq=False)
class Exchange:
    """Request with its actions; retries share one exchange.

    Args:
        request: the first request.
        actions: task that returns the replies.
        lives: the actions in progress, for a streamed response; empty otherwise.
    """

    request: ClientRequest
    actions: asyncio.Task[list[Reply]]
    lives: Sequence[Live]
    seen: set[int] = field(default_factory=set)  # retry counts received so far
    listeners: int = 0

    @property
    def pending(self) -> bool:
        """True while a client waits for the actions."""
        return self.listeners > 0 and not self.actions.done()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an episode.

    Args:
        tokens: maximum number of sampled tokens over all agents; limits the length of each action. 0: no limit.
        requests: maximum number of requests. 0: no limit.
        wait_seconds: maximum idle time of a program before requests of other episodes proceed, in seconds.
    """

    tokens: int = 0
    requests: int = 0
    wait_seconds: float = 60.0


class Session:
    """Requests of one episode.

    All methods run on the run's event loop, except for access to ``secret`` and ``kept``. ``kept`` has the
    conversations up to each response, by response id. Each step has its own secret, so processes left from an
    earlier step cannot act.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.secret = ""
        self.secrets: list[str] = []  # secrets of all steps so far
        self.loop = asyncio.get_running_loop()
        self.overdue = 0  # number of times that others stopped waiting for the program
        self.kept: dict[str, dict[str, tuple[Said, ...]]] = {}  # by role; only for the gateway's thread
        self._agents: Agents | None = None
        self._observation = Observation("")
        self._under_way: set[Exchange] = set()
        self._named: dict[tuple[str, str], Exchange] = {}  # by role and idempotency key
        self._sent: dict[bytes, list[Exchange]] = {}  # by digest, for retries without a key
        self._asked = 0
        self._budget = Budget(limits.tokens)
        self._external_wait: Callable[[], AbstractContextManager[None]] | None = None
        self._held, self._holding = ExitStack(), False
        self._waits = False
        self._patience: asyncio.TimerHandle | None = None

    def renew(self) -> None:
        """Create a new secret for the next step."""
        self.secret = secrets.token_urlsafe(24)
        self.secrets.append(self.secret)

    def begin(self, agents: Agents, observation: Observation) -> None:
        """Start a step; its program may send requests from now on."""
        self._agents, self._observation = agents, observation
        self._external_wait, self._waits = agents.outside().external_wait, False
        self._named, self._sent = {}, {}  # requests of an earlier step are not answered again
        self._settle()

    async def end(self) -> None:
        """End the step after its program; cancel pending requests."""
        self._agents = None
        left = [exchange.actions for exchange in self._under_way]
        self.close()
        if left:
            await asyncio.wait(left, timeout=GRACE_SECONDS)

    def close(self) -> None:
        """Reject further requests and cancel pending requests."""
        self._agents = None
        for exchange in self._under_way:
            exchange.actions.cancel()
        self._settle()

    def wait(self, secret: str) -> None:
        """Stop waiting for the program until its next request.

        Raises:
            RequestError: the step is over.
        """
        self._seats(secret)
        self._waits = True
        self._settle()

    def policy_of(self, role: str, secret: str) -> str:
        """Return a role's policy.

        Raises:
            RequestError: the episode is over, or has no such role.
        """
        return self._seat(role, secret).agent.policy

    def tokens_of(self, request: ClientRequest) -> int:
        """Return the number of tokens in a chat after the agent's template.

        Raises:
            RequestError: the episode is over or has no such role, or the chat cannot be rendered.
        """
        policy = self._seat(request.role, request.secret).agent.policy
        renderer = self._seats(request.secret).outside().renderer
        assert renderer is not None, "seats of a game have one"
        try:
            return tokens_of(renderer, policy, request.chat)
        except ChatRefusedError as error:
            raise RequestError.of(error) from error

    def check_of(self, request: ClientRequest) -> Callable[[], None]:
        """Return a function that checks a request's constraint against the engine.

        The function may run on any thread, and may take long. Its result is cached for the request.

        Raises:
            RequestError: the episode is over, or has no such role.
        """
        policy = self._seat(request.role, request.secret).agent.policy
        renderer = self._seats(request.secret).outside().renderer
        assert renderer is not None, "seats of a game have one"
        return partial(check_constraint, renderer, policy, request.chat)

    async def ask(self, request: ClientRequest) -> tuple[Exchange, list[Reply]]:
        """Return a request's exchange and replies; a retry gets the first attempt's replies.

        If the caller is cancelled, the actions continue.

        Raises:
            RequestError: the request failed or was rejected.
        """
        exchange = self._known(request) or self._begun(request)
        exchange.seen.add(request.retry)
        exchange.listeners += 1
        if request.hearing:
            request.hearing.hear(exchange.lives)
        self._waits = False
        self._settle()
        try:
            replies = await asyncio.shield(exchange.actions)
            self._waits = request.waits
            return exchange, replies
        except asyncio.CancelledError:
            if exchange.actions.cancelled():
                raise closed() from None
            raise
        except ChatRefusedError as error:
            raise RequestError.of(error) from error
        except RequestError:
            raise
        except Exception as error:  # the episode fails with this error and reports it
            logging.getLogger("marft").exception("an action of %s failed, and its episode with it", request.role)
            raise RequestError(500, "episode_failed", "the action failed, and the episode with it") from error
        finally:
            exchange.listeners -= 1
            self._settle()

    def _seats(self, secret: str) -> Agents:
        if self._agents is None or secret != self.secret:
            raise closed()
        return self._agents

    def _seat(self, role: str, secret: str) -> Seat:
        found = next((seat for seat in self._seats(secret) if seat.role == role), None)
        if found is None:
            raise unknown()
        return found

    def deliver(self, exchange: Exchange) -> None:
        """Mark a response as started; a later request with the same content and no key is a new request."""
        self._forget(exchange)

    def _known(self, request: ClientRequest) -> Exchange | None:
        """Return the exchange from an earlier attempt, if any.

        Attempts may arrive out of order.
        """
        self._seat(request.role, request.secret)
        if request.key:
            named = self._named.get((request.role, request.key))
            if named and named.request.digest != request.digest:
                raise RequestError(400, "idempotency_error", "this idempotency key belongs to another request")
            return named
        same = self._sent.get(request.digest, [])
        fitting = [one for one in same if request.retry not in one.seen]
        again = same if request.retry else []
        return min([*fitting, *again], key=lambda one: (request.retry in one.seen, one.listeners > 0), default=None)

    def _begun(self, request: ClientRequest) -> Exchange:
        seat = self._seat(request.role, request.secret)
        if self.limits.requests and self._asked + request.count > self.limits.requests:
            raise spent("requests", self.limits.requests)
        self._asked += request.count
        lives = [Live() for _ in range(request.count)] if request.hearing else []
        exchange = Exchange(request, asyncio.ensure_future(self._acted(seat, request, lives)), lives)
        exchange.actions.add_done_callback(lambda _: self._answered(exchange))
        self._under_way.add(exchange)
        if request.key:
            self._named[request.role, request.key] = exchange
        else:
            self._sent.setdefault(request.digest, []).append(exchange)
        return exchange

    async def _acted(self, seat: Seat, request: ClientRequest, lives: Sequence[Live]) -> list[Reply]:
        most, replies = seat.agent.sampling.max_new_tokens, list[Reply]()
        share = await self._budget.take(request.count, min(most, request.chat.max_tokens or most))
        chat = replace(request.chat, max_tokens=share) if self.limits.tokens else request.chat
        try:
            chats = [replace(chat, live=live) for live in lives] or [chat] * request.count
            wanted = [seat.reply(self._observation, chat) for chat in chats]
            replies = [await wanted[0]] if request.count == 1 else list(await asyncio.gather(*wanted))
        finally:
            sampled = sum(len(reply.action.tokens) for reply in replies)
            self._budget.give_back(request.count * share, sampled)
        return replies

    def _answered(self, exchange: Exchange) -> None:
        self._under_way.discard(exchange)
        failed = exchange.actions.cancelled() or exchange.actions.exception() is not None
        if failed:  # no action was recorded, so a retry is allowed
            self._asked -= exchange.request.count
            name = exchange.request.role, exchange.request.key
            if self._named.get(name) is exchange:
                del self._named[name]
            self._forget(exchange)
        self._settle()

    def _forget(self, exchange: Exchange) -> None:
        left = [one for one in self._sent.pop(exchange.request.digest, []) if one is not exchange]
        if left:
            self._sent[exchange.request.digest] = left

    def _settle(self) -> None:
        """Hold the external wait while the program may send more requests, up to the maximum idle time."""
        busy = self._agents is not None and not self._waits and not any(one.pending for one in self._under_way)
        if busy == self._holding:
            return
        self._holding = busy
        if busy:
            assert self._external_wait is not None, "a step has begun"
            self._held.enter_context(self._external_wait())
            self._patience = self.loop.call_later(self.limits.wait_seconds, self._give_up)
        else:
            self._held.close()
            if self._patience:
                self._patience.cancel()

    def _give_up(self) -> None:
        self.overdue += 1
        self._waits = True
        self._settle()
