"""One episode that code of one's own drives."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from marft.agents.reading import RefusedError
from marft.common.types import Episode, Task
from marft_serve.gateway.client import Client
from marft_serve.gateway.solving import outcome_of

Clients = Mapping[str, Client]


class Session:
    """One episode that somebody else drives: its agents are reached at ``clients``, until it is ended.

    Attributes:
        task: what it is about.
        clients: by role: ``OpenAI(**session.clients["actor"].keywords)``.
        observation: what the environment shows; of a task in words, these.
        episode: what was recorded, once it is over.
    """

    def __init__(self, task: Task, graded: bool) -> None:
        self.task, self.graded = task, graded
        self.clients: Clients = {}
        self.observation = ""
        self.episode: Episode | None = None
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._turn: tuple[asyncio.AbstractEventLoop, asyncio.Future[Mapping[str, Any]]] | None = None
        self._calling_off: Callable[[], object] = lambda: None
        self._earned = not graded  # whether somebody says what it was worth

    def step(
        self, answer: str | None = None, *, reward: float | None = None, success: bool | None = None,
        agent_rewards: Mapping[str, float] | None = None,
    ) -> str | None:  # fmt: skip
        """Give the team's answer to what is observed → what is observed next; None where the episode is over.

        Args:
            answer: None: what the team said last.
            reward: what it earns, of a task in words; one of the environment's is graded by the environment.

        Raises:
            ValueError: the episode is over, or this is no answer, or no grade, that it can take.
        """
        if self.episode is not None:
            raise ValueError(f"the session is over: {self.episode.error or self.episode.status}")
        said = {"answer": answer, "reward": reward, "success": success, "agent_rewards": agent_rewards}
        table = {key: value for key, value in said.items() if value is not None}
        if not self.graded and len(table) > ("answer" in table):
            raise ValueError("a task of the environment is graded by the environment: give the answer alone")
        if self.graded:
            table.setdefault("reward", 0.0)
        try:
            outcome_of(table, self.clients, self.graded)
        except RefusedError as error:
            raise ValueError(f"the session {error}") from None
        self._earned = self._earned or reward is not None
        assert self._turn is not None, "a session that somebody holds has begun"
        loop, turn = self._turn
        with suppress(RuntimeError):  # its thread has ended: the episode is over, and says why
            loop.call_soon_threadsafe(_told, turn, table)
        self._wait()
        return None if self.episode is not None else self.observation

    def end(
        self, answer: str | None = None, *, reward: float | None = None, success: bool | None = None,
        agent_rewards: Mapping[str, float] | None = None,
    ) -> Episode:  # fmt: skip
        """:meth:`step`, after which nothing is to come → the episode. Where no reward is given and nothing grades it,
        it is recorded ungraded.

        Raises:
            ValueError: as for :meth:`step`; or the environment goes on, and is then called off.
        """
        if self.step(answer, reward=reward, success=success, agent_rewards=agent_rewards) is not None:
            self.call_off()
            raise ValueError("the environment goes on: give every answer with step(), until that returns None")
        assert self.episode is not None
        return self.episode

    def call_off(self) -> None:
        """End without an answer: the episode is recorded as failed."""
        while self.episode is None:
            with suppress(RuntimeError):  # the gateway has ended, and has called it off
                self._calling_off()
            self._wait()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.episode is None and kind is None:
            self.end()
        else:
            self.call_off()

    async def _answer(self, task: Task, clients: Clients) -> Mapping[str, Any]:
        """The program of the episode, on a thread of its own: it hands everything over, and waits."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Mapping[str, Any]] = loop.create_future()

        def begun() -> None:
            self.clients, self.observation, self._turn = clients, task.prompt, (loop, turn)

        self._events.put(begun)
        return await turn

    def _over(self, episode: Episode) -> None:
        self._events.put(lambda: setattr(self, "episode", episode))

    def _wait(self) -> None:
        self._events.get()()


def _told(turn: asyncio.Future[Mapping[str, Any]], table: Mapping[str, Any]) -> None:
    if not turn.done():  # it took too long, or was called off
        turn.set_result(table)
