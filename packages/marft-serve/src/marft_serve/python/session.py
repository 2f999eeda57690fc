"""Single episode driven by the user's own code."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from marft.agents.environment_calls import RefusedError
from marft.common.types import Episode, Task
from marft_serve.gateway.client import Client
from marft_serve.gateway.program_runner import parse_outcome

Clients = Mapping[str, Client]


class Session:
    """Single episode with its agents reachable through ``clients`` until the end.

    Attributes:
        task: the task.
        graded: True if the caller may give a reward, False if the environment grades.
        clients: clients by role: ``OpenAI(**session.clients["actor"].keywords)``.
        observation: current observation; for a task in text form, the text.
        episode: the recorded episode; None until the end.
    """

    def __init__(self, task: Task, graded: bool) -> None:
        self.task, self.graded = task, graded
        self.clients: Clients = {}
        self.observation = ""
        self.episode: Episode | None = None
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._turn: tuple[asyncio.AbstractEventLoop, asyncio.Future[Mapping[str, Any]]] | None = None
        self._cancel: Callable[[], object] = lambda: None
        self._has_reward = not graded  # whether the episode has a reward

    def step(
        self,
        answer: str | None = None,
        *,
        reward: float | None = None,
        success: bool | None = None,
        agent_rewards: Mapping[str, float] | None = None,
    ) -> str | None:
        """Submit the team's answer; return the next observation, or None at the end.

        Args:
            answer: the answer; None for the team's last message.
            reward: reward for a task in text form; not allowed if the environment grades.
            success: whether the task is solved, for a task in text form; optional.
            agent_rewards: individual rewards by role, for a task in text form; optional.

        Raises:
            ValueError: the episode is over, or the answer or reward is invalid.
        """
        if self.episode is not None:
            raise ValueError(f"the session is over: {self.episode.error or self.episode.status}")
        fields = {"answer": answer, "reward": reward, "success": success, "agent_rewards": agent_rewards}
        table = {key: value for key, value in fields.items() if value is not None}
        if not self.graded and len(table) > ("answer" in table):
            raise ValueError("a task of the environment is graded by the environment: give the answer alone")
        if self.graded:
            table.setdefault("reward", 0.0)
        try:
            parse_outcome(table, self.clients, self.graded)
        except RefusedError as error:
            raise ValueError(f"the session {error}") from None
        self._has_reward = self._has_reward or reward is not None
        assert self._turn is not None, "a session that somebody holds has begun"
        loop, turn = self._turn
        with suppress(RuntimeError):  # the episode is over, and reports the reason
            loop.call_soon_threadsafe(_resolve_turn, turn, table)
        self._process_event()
        return None if self.episode is not None else self.observation

    def end(
        self,
        answer: str | None = None,
        *,
        reward: float | None = None,
        success: bool | None = None,
        agent_rewards: Mapping[str, float] | None = None,
    ) -> Episode:
        """Submit the final answer with :meth:`step`; return the episode.

        Without a reward from the caller or the environment, the episode is recorded ungraded.

        Raises:
            ValueError: as for :meth:`step`; or the environment expects more answers, and the episode is cancelled.
        """
        if self.step(answer, reward=reward, success=success, agent_rewards=agent_rewards) is not None:
            self.cancel()
            raise ValueError("the environment goes on: give every answer with step(), until that returns None")
        assert self.episode is not None
        return self.episode

    def cancel(self) -> None:
        """Cancel the episode and record a failure."""
        while self.episode is None:
            with suppress(RuntimeError):  # the gateway is closed, and has cancelled the episode
                self._cancel()
            self._process_event()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.episode is None and kind is None:
            self.end()
        else:
            self.cancel()

    async def _answer(self, task: Task, clients: Clients) -> Mapping[str, Any]:
        """Program for the episode, on a separate thread: hand over the clients and wait for the answer."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Mapping[str, Any]] = loop.create_future()

        def store_turn() -> None:
            """Store the clients and the observation."""
            self.clients, self.observation, self._turn = clients, task.prompt, (loop, turn)

        self._events.put(store_turn)
        return await turn

    def _set_episode(self, episode: Episode) -> None:
        self._events.put(lambda: setattr(self, "episode", episode))

    def _process_event(self) -> None:
        self._events.get()()


def _resolve_turn(turn: asyncio.Future[Mapping[str, Any]], table: Mapping[str, Any]) -> None:
    if not turn.done():  # timed out or cancelled
        turn.set_result(table)
