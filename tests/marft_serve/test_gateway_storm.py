"""A storm on one gateway: of all that damaged, cut and lost requests do, nothing reaches the episodes beside it."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from tests.nights import NIGHT

pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")

from marft.common.types import ActionKey, Episode, Task
from marft_serve.gateway.client import Client
from tests.fakes import FakeEngine
from tests.gateways import ASK, completions, game_of, play_game
from tests.marft_serve.test_gateway_requests import RETRY, damaged

Clients = Mapping[str, Client]
NUMBER, AT_ONCE, TURNS = (10_000, 200, 60) if NIGHT else (300, 100, 10)
SECONDS = 120.0  # in which every request is answered
KINDS = ("damaged", "damaged", "damaged", "not HTTP", "too short", "cut head", "elsewhere", "cut stream", "unread")


@dataclass
class Storm:
    """What was sent, and what came of it."""

    chance: random.Random
    statuses: Counter[int] = field(default_factory=Counter)
    said: list[bytes] = field(default_factory=list)
    unread: int = 0  # whole requests of which nobody read the answer
    silent: list[str] = field(default_factory=list)  # kinds of those that got no answer and should have

    async def blow(self, client: Client) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(kind: str) -> None:
            async with gate:
                try:
                    async with asyncio.timeout(SECONDS):
                        await self._send(client, kind)
                except (TimeoutError, ConnectionError):
                    self.silent.append(kind)

        await asyncio.gather(*(one(self.chance.choice(KINDS)) for _ in range(NUMBER)))

    async def _send(self, client: Client, kind: str) -> None:
        parts = urlsplit(completions(client))
        reader, writer = await asyncio.open_connection(str(parts.hostname), parts.port)
        try:
            sent, whole = self._request(parts.path, kind)
            writer.write(sent)
            await writer.drain()
            if kind == "cut stream":
                await reader.read(40)
            if whole and kind in ("cut stream", "unread"):
                self.unread += 1
            elif kind not in ("too short", "cut head"):
                answer = await reader.read()
                self.statuses[int(answer.split()[1])] += 1
                self.said.append(answer)
        finally:
            writer.close()

    def _request(self, path: str, kind: str) -> tuple[bytes, bool]:
        """A request's bytes, and whether it is one that is an action."""
        chance, whole = self.chance, json.dumps(ASK).encode()
        if kind == "not HTTP":
            return bytes(chance.randrange(256) for _ in range(chance.randrange(1, 200))) + b"\r\n\r\n", False
        if kind == "elsewhere":
            odd = ["/e/none/a/v1/chat/completions", "/", path.replace("/a/", "/z/"), f"{path}/x", path[:-30], "/e/../a"]
            return _posted(chance.choice(odd), whole), False
        if kind == "too short":
            return _posted(path, whole, len(whole) + chance.randrange(1, 5000)), False
        if kind == "cut head":
            posted = _posted(path, whole)
            return posted[: chance.randrange(1, posted.index(b"\r\n\r\n"))], False
        if kind == "cut stream":
            return _posted(path, json.dumps({**ASK, "stream": True}).encode()), True
        return _posted(path, whole if kind == "unread" else damaged(chance), retry=chance.choice("0011x")), True


def _posted(path: str, body: bytes, length: int | None = None, retry: str = "0") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: here", "connection: close", f"{RETRY}: {retry}"]
    lines.append(f"content-length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def conversation(client: Client, name: str) -> list[str]:
    """What an honest client is told in so many turns, each of which begins with all that was said."""
    from openai import AsyncOpenAI

    messages = [{"role": "user", "content": f"I am {name}."}]
    async with AsyncOpenAI(base_url=client.base_url, api_key="none", max_retries=0, timeout=SECONDS) as asking:
        for turn in range(TURNS):
            answer = await asking.chat.completions.create(model="any", messages=messages)  # type: ignore[arg-type]
            said = str(answer.choices[0].message.content)
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"{name} {turn}"}]
    return [str(message["content"]) for message in messages]


def play(storm: Storm, honest: int) -> tuple[Episode, list[Episode], dict[str, list[str]]]:
    told: dict[str, list[str]] = {}

    async def solve(task: Task, clients: Clients) -> None:
        if task.id == "t0":
            await storm.blow(clients["a"])
        else:
            told[task.id] = await conversation(clients["a"], f"honest {task.id}")

    def say(key: ActionKey, prompt: str) -> str:
        return f"{prompt.rsplit('honest', 1)[-1].strip()[:4]} of {key.call}" if "honest" in prompt else "blown"

    game = game_of(solve, engine=FakeEngine(say), timeout_seconds=3600.0, body_timeout_seconds=5.0)
    first, *others = play_game(game, 1 + honest)
    return first, others, told


@pytest.mark.slow
def test_a_storm_of_requests_costs_the_episodes_beside_it_nothing() -> None:
    pytest.importorskip("openai", reason="needs a client: pip install openai")
    storm = Storm(random.Random(0))
    stormy, others, told = play(storm, 7)

    assert {episode.status for episode in others} == {"terminated"}, [episode.error for episode in others]
    assert len(told) == 7
    for episode in others:
        name = episode.task.id
        assert [action.message for action in episode.actions] == told[name][1::2]
        assert all(action.message.startswith(name) for action in episode.actions)

    assert (stormy.status, storm.silent) == ("terminated", []), stormy.error
    assert set(storm.statuses) <= {200, 400, 404, 405, 410, 413, 422}
    assert storm.statuses[200] <= len(stormy.actions) <= storm.statuses[200] + storm.unread
    assert not any(b"honest" in said for said in storm.said)
    assert {action.message for action in stormy.actions} == {"blown"}
