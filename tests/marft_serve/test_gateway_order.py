"""In-order admission waits for programs: until each has asked, waits for something else, or has ended; and no longer
than it may."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager

import pytest

pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")

from marft.agents.game import Game
from marft.common.types import ActionKey, Completion, Episode, Prompt, SamplingParams, Task
from marft.inference.quiescence import QuiescenceBarrier
from marft_serve.gateway.client import Client
from tests.fakes import FakeEngine
from tests.gateways import ASK, ask, game_of, play_game, send
from tests.helpers import until
from tests.marft_serve.test_gateway_requests import head, spoken_to

Clients = Mapping[str, Client]


class InOrder(FakeEngine):
    """Admits what waits once nobody can go on without it, and keeps which requests were admitted together."""

    def __init__(self) -> None:
        super().__init__()
        self.stillness, self.together = QuiescenceBarrier(), list[list[str]]()
        self.waiting: list[tuple[ActionKey, asyncio.Future[None]]] = []
        self.driver: asyncio.Task[None] | None = None

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        admitted = asyncio.get_running_loop().create_future()
        self.waiting.append((key, admitted))
        self.stillness.notify_activity()
        if self.driver is None or self.driver.done():
            self.driver = asyncio.create_task(self.drive())
        await admitted
        return await super().sample(policy, prompt, sampling, key)

    async def drive(self) -> None:
        while self.waiting:
            await self.stillness.wait()
            batch, self.waiting = sorted(self.waiting, key=lambda one: one[0]), []
            self.together.append([f"{key.task}{key.agent}{key.call}" for key, _ in batch])
            for _, admitted in batch:
                if not admitted.done():
                    admitted.set_result(None)

    def external_wait(self) -> AbstractContextManager[None]:
        return self.stillness.external_wait()


def together(solve: object, count: int = 2, **program: float) -> tuple[list[list[str]], list[Episode], Game]:
    engine = InOrder()
    g = game_of(solve, "a", "b", engine=engine, **program)  # type: ignore[arg-type]
    episodes = play_game(g, count)
    assert [episode.status for episode in episodes] == ["terminated"] * count, episodes[0].error
    return engine.together, episodes, g


def test_programs_that_are_slow_between_requests_are_waited_for() -> None:
    def solve(task: Task, clients: Clients) -> None:
        for role in ("a", "b"):
            time.sleep(0.02 * int(task.id[1:]))
            ask(clients[role])

    batches, _, _ = together(solve, 5)
    assert batches == [[f"t{n}{role}0" for n in range(5)] for role in ("a", "b")]


def test_one_that_has_ended_is_not_waited_for() -> None:
    def solve(task: Task, clients: Clients) -> None:
        for _ in range(1 + int(task.id[1:])):
            ask(clients["a"])

    assert together(solve, 3)[0] == [["t0a0", "t1a0", "t2a0"], ["t1a1", "t2a1"], ["t2a2"]]


def test_one_that_waits_for_something_else_says_so() -> None:
    """It waits for what another one does after its own answer: nobody would go on for ever."""
    answered = threading.Event()

    def solve(task: Task, clients: Clients) -> None:
        if task.id == "t1":
            assert send(clients["a"].waiting_url, None).status == 204
            assert answered.wait(10)
        ask(clients["a"])
        answered.set()

    assert together(solve, idle_timeout_seconds=30.0)[0] == [["t0a0"], ["t1a0"]]


def test_a_header_says_so_too() -> None:
    answered = threading.Event()

    def solve(task: Task, clients: Clients) -> None:
        if task.id == "t1":
            ask(clients["a"], headers={"x-marft-waiting": "true"})
            assert answered.wait(10)
        else:
            ask(clients["a"])
            ask(clients["a"])
            answered.set()
        ask(clients["b"])

    assert together(solve, idle_timeout_seconds=30.0)[0][:2] == [["t0a0", "t1a0"], ["t0a1"]]


def test_a_header_of_a_request_that_is_refused_says_nothing() -> None:
    def solve(task: Task, clients: Clients) -> None:
        if task.id == "t1":
            refused = ask(clients["a"], headers={"x-marft-waiting": "true", "x-marft-sees": "0/a/9"})
            assert refused.status == 400
            time.sleep(0.3)
        ask(clients["a"])

    assert together(solve, idle_timeout_seconds=30.0)[0] == [["t0a0", "t1a0"]]


def test_others_go_on_without_one_that_asks_for_nothing_too_long_and_that_is_counted() -> None:
    answered = threading.Event()
    counts: list[Mapping[str, float]] = []

    def solve(task: Task, clients: Clients) -> None:
        if task.id == "t1":
            assert answered.wait(10)
        ask(clients["a"])
        answered.set()

    engine = InOrder()
    g = game_of(solve, engine=engine, idle_timeout_seconds=0.2)
    close = g.threads.close
    g.threads.close = lambda: (counts.append(g.threads.counts()), close())  # type: ignore[method-assign,assignment]
    play_game(g, 2)
    assert engine.together == [["t0a0"], ["t1a0"]]
    assert counts == [{"gateway/idle_timeouts": 1.0}]


def test_a_client_that_goes_away_has_no_request_pending() -> None:
    """Its program may ask again at once: what it asks for then comes with the others."""
    engine, go = InOrder(), threading.Event()

    def solve(task: Task, clients: Clients) -> None:
        if task.id == "t1":
            assert go.wait(10)
            ask(clients["b"])
            return
        body = json.dumps(ASK).encode()
        with spoken_to(clients["a"]) as connection:
            connection.sendall(head(clients["a"], len(body)) + body)
            until(lambda: len(engine.waiting) == 1)
        until(lambda: engine.stillness._external_waits == 2)
        go.set()
        until(lambda: len(engine.waiting) == 2)
        ask(clients["b"])

    episodes = play_game(game_of(solve, "a", "b", engine=engine, idle_timeout_seconds=30.0), 2)
    assert engine.together == [["t0a0", "t0b0", "t1b0"]]
    assert [action.id for action in episodes[0].actions] == ["0/a/0", "0/b/0"]
