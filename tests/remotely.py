"""Games whose teammates are behind the server of :mod:`tests.endpoint`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from marft.agents.game import Attempt, Game
from marft.agents.play import play_all
from marft.common.types import ActionKey, Episode, Prompt, SamplingParams, Task
from marft.config import RunSettings, parse_recipe
from marft.config.endpoint import EndpointSettings
from marft.inference.endpoints.client import Endpoint
from marft.inference.remote import EndpointEngine, RemotePolicy
from marft.inference.router import Router
from tests.endpoint import Server
from tests.fakes import FakeEngine, FakeRenderer, Script, ends, game
from tests.helpers import recipe

ENDPOINT = {"url": "http://127.0.0.1:1/v1"}
KEY_OF_ACTION = ActionKey("s", "t", 0, 0, "a", 0)


class ChatRenderer(FakeRenderer):
    """The fake renderer, which passes on the messages that it rendered too."""

    def render(self, *arguments: Any, **options: Any) -> Prompt:
        prompt = super().render(*arguments, **options)
        return replace(prompt, chat=({"role": "user", "content": bytes(prompt.ids.astype(np.uint8)).decode()},))


@contextmanager
def asking(server: Server, **changes: Any) -> Iterator[Endpoint]:
    endpoint = Endpoint("teacher", EndpointSettings(url=server.url, **{"max_retries": 0, **changes}), "gpt-x")
    try:
        yield endpoint
    finally:
        endpoint.close()


def teammates(endpoint: Endpoint, *policies: str, local: Sequence[str] = (), inner: FakeEngine | None = None) -> Router:
    """The policies named are behind the endpoint, ``local`` ones are faked."""
    remote = {policy: RemotePolicy(endpoint, 4000) for policy in policies or ("a",)}
    behind = EndpointEngine(ChatRenderer(), remote, seed=3, decode=lambda _, ids: bytes(ids.astype(np.uint8)).decode())
    return Router(dict.fromkeys(local, inner or FakeEngine()) | dict.fromkeys(remote, behind))


def remote_game(endpoint: Endpoint, *roles: str, remote: Sequence[str] = (), **changes: Any) -> Game:
    made = game(Script([ends()]), *roles, **changes)
    return replace(made, engine=teammates(endpoint, *remote, local=roles or ("a",)), renderer=ChatRenderer())  # type: ignore[arg-type]


def play_many(g: Game, count: int) -> list[Episode]:
    return asyncio.run(play_all(g, [Attempt(Task(f"t{n}", f"task {n}"), "s") for n in range(count)], 64))


def ask(engine: Router, prompt: Prompt | None = None, sampling: SamplingParams | None = None) -> Any:
    chat = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3 ="})
    return asyncio.run(
        engine.sample(
            "a", prompt or Prompt(np.arange(3, dtype=np.int32), chat=chat), sampling or SamplingParams(), KEY_OF_ACTION
        )
    )


def team(server: Server, output: Path, *overrides: str, **endpoint: Any) -> RunSettings:
    """A remote reasoner and an actor that trains, with a critic."""
    table = recipe("tiny", output, environment={"name": "tests.plugins:Flaky", "alternates": True})
    table["models"]["teacher"] = {"path": "gpt-x", "endpoint": {"url": server.url, "max_retries": 0, **endpoint}}
    table["policies"]["reasoner"] = {"model": "teacher", "train": "frozen"}
    return parse_recipe(table, overrides)
