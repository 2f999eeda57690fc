"""A team that is served in this process, with an engine and a renderer without models."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from marft.agents.game import Game
from marft.agents.loop_threads import LoopThread
from marft.common.types import ActionKey, Completion, Episode, Prompt, SamplingParams
from marft_serve.gateway.listener import Listener
from marft_serve.serving.app import App
from marft_serve.serving.options import ServeOptions
from marft_serve.serving.team_handler import TeamHandler
from tests.fakes import FakeEngine, Script, game
from tests.gateways import Response, send


class Held(FakeEngine):
    """Says nothing before it may; counts those that wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()
        self.waiting = self.most = 0

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            while not self.may.is_set():
                await asyncio.sleep(0.005)
            return await super().sample(policy, prompt, sampling, key)
        finally:
            self.waiting -= 1


class Serving:
    """Where it is, and what it is made of."""

    def __init__(self, app: App, listener: Listener, episodes: list[Episode], game: Game) -> None:
        self.app, self.listener, self.episodes, self.game = app, listener, episodes, game
        self.url = listener.address

    def ask(self, model: str = "team", text: str = "1 + 2?", token: str = "", **fields: object) -> Response:
        body = {"model": model, "messages": [{"role": "user", "content": text}], **fields}
        return send(f"{self.url}/v1/chat/completions", body, bearer(token))


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"} if token else {}


@contextmanager
def serving(
    *roles: str,
    engine: FakeEngine | None = None,
    token: str = "",
    options: ServeOptions | None = None,
    **changes: object,
) -> Iterator[Serving]:
    g = game(Script([]), *(roles or ("a", "b")), engine=engine, **changes)
    thread, episodes = LoopThread(), list[Episode]()
    app = App(TeamHandler(g, "demo", episodes.append), thread.loop, options or ServeOptions(token=token))
    listener = Listener(app.asgi, "127.0.0.1", 0, "the test", 5)
    try:
        yield Serving(app, listener, episodes, g)
    finally:
        listener.close()
        g.threads.close()
        thread.stop()


@contextmanager
def command(*words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``marft serve`` as a process, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "marft", "serve", *words, "--port", "0", "--threads", "1"], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout
        found = None
        while found is None:
            line = process.stdout.readline()
            assert line, "it has ended"
            found = re.match(r"(http://\S+)/v1 answers for ", line)
        yield found[1], process
    finally:
        process.kill()
        process.wait()
