"""Episodes whose organization is a program that asks over HTTP, with an engine and a renderer without models."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from marft.agents.game import Attempt, Game
from marft.agents.play import play_all
from marft.common.types import Episode, Task
from marft.config.python_objects import ObjectPlaceholder
from marft_serve.gateway.client import Client
from marft_serve.gateway.program import Program
from tests.fakes import FakeEngine, Script, ends, game

Solve = Callable[[Task, Mapping[str, Client]], object]
ASK = {"model": "any", "messages": [{"role": "user", "content": "1 + 2?"}]}


class Response:
    """What came back over HTTP."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.status, self.body, self.headers = status, body, headers

    @property
    def table(self) -> Any:
        return json.loads(self.body)

    @property
    def said(self) -> str:
        return str(self.table["choices"][0]["message"]["content"])


def send(
    url: str, body: object = ASK, headers: Mapping[str, str] | None = None, method: str = "POST", timeout: float = 20.0
) -> Response:  # fmt: skip
    """One request, on a connection of its own."""
    parts = urlsplit(url)
    assert parts.hostname
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, parts.path, data, dict(headers or {}))
        answer = connection.getresponse()
        return Response(answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()})
    finally:
        connection.close()


def completions(client: Client) -> str:
    return f"{client.base_url}/chat/completions"


def ask(client: Client, text: str = "1 + 2?", headers: Mapping[str, str] | None = None, **fields: Any) -> Response:
    """Ask an agent as any client does."""
    body = {"model": client.model, "messages": [{"role": "user", "content": text}], **fields}
    return send(completions(client), body, headers)


def game_of(
    solve: Solve | None, *roles: str, engine: FakeEngine | None = None, steps: Sequence[Any] = (), **program: Any
) -> Game:
    given = {"call": ObjectPlaceholder(solve)} if solve else {}
    part = Program(**given, **{"timeout_seconds": 60.0, "idle_timeout_seconds": 30.0, **program})
    script = Script(list(steps) or [ends()] * 1000)
    return game(script, *(roles or ("a",)), organization=part, engine=engine)


def play_game(g: Game, count: int = 1) -> list[Episode]:
    try:
        return asyncio.run(play_all(g, [Attempt(Task(f"t{n}", f"task {n}"), "s") for n in range(count)], 64))
    finally:
        g.threads.close()


def played(solve: Solve, *roles: str, **options: Any) -> Episode:
    (episode,) = play_game(game_of(solve, *roles, **options))
    return episode
