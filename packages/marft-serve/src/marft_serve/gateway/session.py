"""One episode as its clients see it: a secret, seats by their roles, requests that are under way and were answered.

A session lives on the run's event loop. While the program may ask for more it holds the engine's external wait: no
request is admitted in order before every session has one pending, waits for something else, or is over.
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

GRACE_SECONDS = 0.5  # for requests that are called off to come to their end


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """What a client asks for.

    Args:
        count: actions that it wants.
        digest: of all that the request says.
        key: by which the client names it, should it ask again; "" where it does not.
        retry: how often it was sent before.
        waits: the program then waits for something else, it says.
        secret: by which it came.
        hearing: what is to hear its actions while they come about.
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
    """A request, however often it is sent, and its actions; ``lives`` are those while they come about, where the
    request is one for a stream."""

    request: ClientRequest
    actions: asyncio.Task[list[Reply]]
    lives: Sequence[Live]
    seen: set[int] = field(default_factory=set)  # counts of retries
    listeners: int = 0

    @property
    def pending(self) -> bool:
        return self.listeners > 0 and not self.actions.done()


@dataclass(frozen=True, slots=True)
class Limits:
    """What an episode may take.

    Args:
        tokens: sampled by all its agents; an action may sample what is left. 0: no limit.
        requests: in all. 0: no limit.
        wait_seconds: for a request of a program that asks for nothing, before others are admitted without it.
    """

    tokens: int = 0
    requests: int = 0
    wait_seconds: float = 60.0


class Session:
    """The requests of one episode. All of it is used on the run's event loop alone, but for ``secret`` and
    ``kept``: the conversations that responses end, by the names of those.

    Every step has a secret of its own: what a program has left behind cannot act in the next one.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.secret = ""
        self.secrets: list[str] = []  # of all steps so far
        self.loop = asyncio.get_running_loop()
        self.overdue = 0  # how often others went on without it
        self.kept: dict[str, dict[str, tuple[Said, ...]]] = {}  # by role: used on the gateway's thread alone
        self._agents: Agents | None = None
        self._observation = Observation("")
        self._under_way: set[Exchange] = set()
        self._named: dict[tuple[str, str], Exchange] = {}  # by role and idempotency key
        self._sent: dict[bytes, list[Exchange]] = {}  # by digest: those that may be sent again without a key
        self._asked = 0
        self._budget = Budget(limits.tokens)
        self._external_wait: Callable[[], AbstractContextManager[None]] | None = None
        self._held, self._holding = ExitStack(), False
        self._waits = False
        self._patience: asyncio.TimerHandle | None = None

    def renew(self) -> None:
        """A step is to begin: it is reached by another secret."""
        self.secret = secrets.token_urlsafe(24)
        self.secrets.append(self.secret)

    def begin(self, agents: Agents, observation: Observation) -> None:
        """A step begins: its program may ask now."""
        self._agents, self._observation = agents, observation
        self._external_wait, self._waits = agents.outside().external_wait, False
        self._named, self._sent = {}, {}  # what an earlier step asked for is not answered again
        self._settle()

    async def end(self) -> None:
        """The program of the step has ended: what it asked for and did not wait for is called off."""
        self._agents = None
        left = [exchange.actions for exchange in self._under_way]
        self.close()
        if left:
            await asyncio.wait(left, timeout=GRACE_SECONDS)

    def close(self) -> None:
        """Nothing is answered any more."""
        self._agents = None
        for exchange in self._under_way:
            exchange.actions.cancel()
        self._settle()

    def wait(self, secret: str) -> None:
        """The program waits for something else, until it asks again."""
        self._seats(secret)
        self._waits = True
        self._settle()

    def policy_of(self, role: str, secret: str) -> str:
        """The policy that plays a role.

        Raises:
            RequestError: the episode is over, or has no such role.
        """
        return self._seat(role, secret).agent.policy

    def tokens_of(self, request: ClientRequest) -> int:
        """The tokens of a chat as an agent would read it.

        Raises:
            RequestError: the episode is over, has no such role, or the chat cannot be shown.
        """
        policy = self._seat(request.role, request.secret).agent.policy
        renderer = self._seats(request.secret).outside().renderer
        assert renderer is not None, "seats of a game have one"
        try:
            return tokens_of(renderer, policy, request.chat)
        except ChatRefusedError as error:
            raise RequestError.of(error) from error

    def check_of(self, request: ClientRequest) -> Callable[[], None]:
        """What looks whether an answer can be held to what a request asks for. It may be called on any thread, and take
        long: what it has found is known when the request is asked.

        Raises:
            RequestError: the episode is over, or has no such role.
        """
        policy = self._seat(request.role, request.secret).agent.policy
        renderer = self._seats(request.secret).outside().renderer
        assert renderer is not None, "seats of a game have one"
        return partial(check_constraint, renderer, policy, request.chat)

    async def ask(self, request: ClientRequest) -> tuple[Exchange, list[Reply]]:
        """The actions that answer a request: those that it was answered with before, where it is sent again. Whoever
        stops waiting leaves them to go on.

        Raises:
            RequestError: it is not answered.
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
        except Exception as error:  # the episode fails of it, and says why
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
        """A response begins: what is asked for now in the same words, without a key, is asked for anew."""
        self._forget(exchange)

    def _known(self, request: ClientRequest) -> Exchange | None:
        """The exchange that a request belongs to which was sent before, or whose retry has come before it."""
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
        if failed:  # it was no action, and may be asked for once more
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
        """Hold the external wait while the program may ask for more, and no longer than it has patience."""
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
