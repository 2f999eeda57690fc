"""Requests that are sent again, come apart, say nonsense or take too much: each is answered and counted once, or refused."""

from __future__ import annotations

import copy
import json
import os
import random
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")

from marft.common.types import Episode, Task
from marft_serve.gateway import app, listener
from marft_serve.gateway.client import Client
from marft_serve.gateway.session import Session
from tests.fakes import FakeEngine, ends, goes_on
from tests.gateways import ASK, Response, ask, completions, game_of, play_game, played, send
from tests.marft_serve.test_gateway import Slow

Clients = Mapping[str, Client]
NUMBER = int(os.environ.get("MARFT_FUZZ", "300"))
RETRY = "x-stainless-retry-count"


def spoken_to(client: Client) -> socket.socket:
    """A connection on which anything can be said."""
    parts = urlsplit(client.base_url)
    return socket.create_connection((str(parts.hostname), parts.port or 0), timeout=20)


def head(client: Client, length: int, *lines: str) -> bytes:
    path = urlsplit(completions(client)).path
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: here", f"content-length: {length}", *lines, "", ""]).encode()


class TestSentAgain:
    def test_equal_requests_are_actions_of_their_own(self) -> None:
        episode = played(lambda t, c: [ask(c["a"]) for _ in range(3)] and None)
        assert len(episode.actions) == 3

    @pytest.mark.parametrize("count", [1, 2])
    def test_one_with_a_key_is_answered_again_and_counted_once(self, count: int) -> None:
        answers: list[Response] = []

        def solve(task: Task, clients: Clients) -> None:
            for _ in range(2):
                answers.append(ask(clients["a"], headers={"idempotency-key": "x"}, n=count))
            answers.append(ask(clients["a"], "another", headers={"idempotency-key": "x"}))
            answers.append(ask(clients["b"], headers={"idempotency-key": "x"}))

        episode = played(solve, "a", "b", engine=FakeEngine(lambda key, _: f"{key.agent}{key.call}"))
        assert [answer.status for answer in answers] == [200, 200, 400, 200]
        assert answers[0].table["choices"] == answers[1].table["choices"]
        assert answers[2].table["error"]["code"] == "idempotency_error"
        assert [action.agent for action in episode.actions] == ["a"] * count + ["b"]

    @pytest.mark.parametrize("headers", [{RETRY: "1"}, {"idempotency-key": "x"}])
    def test_a_retry_joins_the_request_that_is_under_way_though_its_client_has_gone(
        self, headers: dict[str, str]
    ) -> None:
        engine, answers = Slow(), list[Response]()

        def solve(task: Task, clients: Clients) -> None:
            body = json.dumps(ASK).encode()
            first = {} if RETRY in headers else headers
            connection = spoken_to(clients["a"])
            connection.sendall(head(clients["a"], len(body), *(f"{k}: {v}" for k, v in first.items())) + body)
            assert engine.waiting.acquire(timeout=10)
            connection.close()
            later = threading.Timer(0.2, engine.free.set)
            later.start()
            answers.append(send(completions(clients["a"]), ASK, headers))
            answers.append(send(completions(clients["a"]), ASK))

        episode = played(solve, engine=engine)
        assert [answer.said for answer in answers] == ["a0", "a1"]
        assert [action.key.call for action in episode.actions] == [0, 1]

    def test_a_retry_of_what_was_answered_is_an_action_of_its_own(self) -> None:
        def solve(task: Task, clients: Clients) -> None:
            ask(clients["a"])
            ask(clients["a"], headers={RETRY: "1"})

        assert len(played(solve).actions) == 2

    def test_retries_that_are_doubled_and_come_in_any_order_are_one_action(self) -> None:
        engine, answers = Slow(), list[Response]()

        def solve(task: Task, clients: Clients) -> None:
            with ThreadPoolExecutor(5) as threads:
                sent = []
                for count in ("2", "1", "0", "2", "1"):
                    sent.append(threads.submit(ask, clients["a"], headers={RETRY: count}))
                    time.sleep(0.1)  # so that each has come before the next one
                engine.free.set()
                answers.extend(future.result() for future in sent)

        episode = played(solve, engine=engine)
        assert [answer.said for answer in answers] == ["a0"] * 5
        assert len(episode.actions) == 1

    def test_equal_requests_at_once_keep_apart_also_when_each_is_tried_again(self) -> None:
        engine, answers = Slow(), list[Response]()

        def solve(task: Task, clients: Clients) -> None:
            with ThreadPoolExecutor(6) as threads:
                sent = [threads.submit(ask, clients["a"], headers={RETRY: count}) for count in "000"]
                for _ in range(3):
                    assert engine.waiting.acquire(timeout=10)
                sent += [threads.submit(ask, clients["a"], headers={RETRY: "1"}) for _ in range(3)]
                time.sleep(0.3)
                engine.free.set()
                answers.extend(future.result() for future in sent)

        episode = played(solve, engine=engine)
        assert sorted(answer.said for answer in answers[:3]) == sorted(answer.said for answer in answers[3:])
        assert len(episode.actions) == 3

    def test_a_refused_request_may_be_asked_again(self) -> None:
        answers: list[Response] = []

        def solve(task: Task, clients: Clients) -> None:
            for _ in range(2):
                answers.append(ask(clients["a"], headers={"idempotency-key": "x", "x-marft-sees": "0/a/9"}))
            answers.append(ask(clients["a"], headers={"idempotency-key": "x"}))

        assert len(played(solve).actions) == 1
        assert [answer.status for answer in answers] == [400, 400, 200]

    @pytest.mark.parametrize("headers", [{"idempotency-key": "x"}, {RETRY: "1"}])
    def test_nothing_is_answered_by_an_earlier_step(
        self, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Session, "deliver", lambda *_: None)  # as where a client goes away before its answer
        episode = played(lambda t, c: ask(c["a"], headers=headers).said, steps=[goes_on(text="more"), ends()])
        assert [action.id for action in episode.actions] == ["0/a/0", "1/a/0"]


class TestTooMuch:
    @pytest.mark.parametrize(
        ("limits", "statuses", "says"),
        [({"max_tokens": 10}, [200, 200, 429], "tokens: 10"), ({"max_requests": 1}, [200, 429, 429], "requests: 1")],
    )
    def test_a_spent_budget_is_a_spent_quota(self, limits: dict[str, int], statuses: list[int], says: str) -> None:
        answers: list[Response] = []
        played(lambda t, c: answers.extend(ask(c["a"]) for _ in range(3)), **limits)
        assert [answer.status for answer in answers] == statuses
        assert answers[-1].table["error"]["code"] == answers[-1].table["error"]["type"] == "insufficient_quota"
        assert says in answers[-1].table["error"]["message"]
        assert answers[-1].headers["x-should-retry"] == "false"

    def test_a_body_beyond_its_limit_is_refused_before_it_is_read(self) -> None:
        answers: list[Any] = []

        def solve(task: Task, clients: Clients) -> None:
            answers.append(ask(clients["a"], "x" * 3000).status)
            with spoken_to(clients["a"]) as connection:  # which says that it goes on for ever
                connection.sendall(head(clients["a"], 10**12))
                answers.append(connection.recv(100).split()[1])
            with spoken_to(clients["a"]) as connection:  # and one that does not say
                chunked = head(clients["a"], 0, "transfer-encoding: chunked").replace(b"content-length: 0\r\n", b"")
                connection.sendall(chunked + (b"3e8\r\n" + b"x" * 1000 + b"\r\n") * 3)
                answers.append(connection.recv(100).split()[1])

        assert played(solve, max_body_bytes=2000).status == "terminated"
        assert answers == [413, b"413", b"413"]

    def test_a_body_that_does_not_come_is_not_waited_for(self) -> None:
        answers: list[bytes] = []

        def solve(task: Task, clients: Clients) -> None:
            with spoken_to(clients["a"]) as connection:
                connection.sendall(head(clients["a"], 100) + b"{")
                while read := connection.recv(1000):
                    answers.append(read)

        assert played(solve, body_timeout_seconds=0.2).status == "terminated"
        assert b" 408 " in answers[0]
        assert b"request_timeout" in b"".join(answers)

    def test_neither_is_a_head(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listener, "HEADER_SECONDS", 0.2)
        ended: list[bytes] = []

        def solve(task: Task, clients: Clients) -> None:
            for sent in (b"", b"POST /e/", head(clients["a"], 0)[:-2]):
                with spoken_to(clients["a"]) as connection:
                    connection.sendall(sent)
                    ended.append(connection.recv(1000))
            assert ask(clients["a"]).status == 200

        assert played(solve).status == "terminated"
        assert ended == [b""] * 3

    def test_neither_is_the_rest_of_a_body_that_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listener, "HEADER_SECONDS", 0.2)
        answers: list[bytes] = []

        def solve(task: Task, clients: Clients) -> None:
            with spoken_to(clients["a"]) as connection:
                connection.sendall(head(clients["a"], 10**9))
                while read := connection.recv(1000):
                    answers.append(read)
                    connection.sendall(b"{")

        assert played(solve).status == "terminated"
        assert b" 413 " in answers[0]

    def test_many_slow_clients_hold_up_nobody_else(self) -> None:
        def solve(task: Task, clients: Clients) -> None:
            slow = [spoken_to(clients["a"]) for _ in range(50)]
            for connection in slow:
                connection.sendall(head(clients["a"], 1000) + b"{")
            assert ask(clients["a"]).status == 200
            for connection in slow:
                connection.close()

        episode = played(solve)
        assert (episode.status, len(episode.actions)) == ("terminated", 1)


class TestOthers:
    def test_an_episode_reaches_nothing_of_another_one(self) -> None:
        """Two episodes with the same words: each goes on from its own turns, under its own secret."""
        met, answers = threading.Barrier(2), dict[str, Response]()

        def solve(task: Task, clients: Clients) -> None:
            said = ask(clients["a"], headers={"idempotency-key": "x"}).table["choices"][0]["message"]
            met.wait(10)
            messages = [*ASK["messages"], said, {"role": "user", "content": "?"}]
            answers[task.id] = send(completions(clients["a"]), {"messages": messages}, {"x-marft-sees": "0/b/0"})

        episodes = play_game(game_of(solve, "a", "b"), 2)
        assert [len(episode.actions) for episode in episodes] == [1, 1]
        assert {answer.status for answer in answers.values()} == {400}

    def test_the_secret_stands_in_no_record(self) -> None:
        secrets: list[str] = []

        def solve(task: Task, clients: Clients) -> None:
            secrets.append(clients["a"].base_url.split("/")[4])
            raise ValueError(clients["a"].base_url)

        episode = played(solve)
        assert len(secrets[0]) > 30
        assert secrets[0] not in repr(episode)


SCRAPS: list[Any] = [
    None, True, 0, -1, 1.5, "", "x", "\ud800", "\0", [], {}, [[]], [{}], "tool", "assistant", "user", 10**30, 1e308,
    {"type": "text", "text": "x"}, {"type": "image_url", "image_url": "x"}, [{"type": "text"}], {"role": "user"},
]  # fmt: skip
WHOLE: dict[str, Any] = {
    "model": "a",
    "messages": [
        {"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "y"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
    ],
    "tools": [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}],
    "tool_choice": "auto", "n": 1, "stop": ["!"], "stream": False, "stream_options": {"include_usage": True},
    "max_tokens": 9, "temperature": 1.0, "top_p": 1.0, "seed": 3, "logprobs": False, "response_format": {"type": "text"},
}  # fmt: skip


def damaged(chance: random.Random) -> bytes:
    """A request after one to three changes, or bytes that never were one."""
    if chance.random() < 0.1:
        return bytes(chance.randrange(256) for _ in range(chance.randrange(60)))
    table: Any = json.loads(json.dumps(WHOLE))
    for _ in range(chance.randint(1, 3)):
        place: Any = table
        while isinstance(place, dict | list) and place:
            key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], dict | list) or chance.random() < 0.4:
                break
            place = place[key]
        if isinstance(place, dict | list) and place:
            what = chance.random()
            if what < 0.6:
                place[key] = copy.deepcopy(chance.choice(SCRAPS))
            elif what < 0.8:
                del place[key]
            elif isinstance(place, list):
                place.append(copy.deepcopy(chance.choice(SCRAPS)))
            else:
                place[chance.choice(["x", "stop", "n", "functions", "role"])] = copy.deepcopy(chance.choice(SCRAPS))
    body = json.dumps(table).encode()
    if chance.random() < 0.15:
        body = body[: chance.randrange(len(body))]
    return b"[" * 5000 if chance.random() < 0.02 else body


def pestered(seed: int, count: int) -> tuple[Episode, list[int]]:
    """An episode of which a program sends so many damaged requests."""
    statuses: list[int] = []

    def solve(task: Task, clients: Clients) -> str:
        chance, connection = random.Random(seed), None
        import http.client

        parts = urlsplit(completions(clients["a"]))
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)
        for _ in range(count):
            connection.request("POST", parts.path, damaged(chance), {RETRY: chance.choice(["0", "0", "1"])})
            answer = connection.getresponse()
            said = (
                json.loads(answer.read()) if answer.getheader("content-type") == "application/json" else answer.read()
            )
            statuses.append(answer.status)
            assert answer.status in (200, 400), said
            assert answer.status == 200 or said["error"]["message"]
        connection.close()
        return ask(clients["a"]).said

    return played(solve, timeout_seconds=3600.0), statuses


def test_malformed_requests_are_refused_in_words_and_no_action() -> None:
    episode, statuses = pestered(0, NUMBER)
    assert episode.status == "terminated", episode.error
    assert len(episode.actions) == statuses.count(200) + 1
    assert statuses.count(400) > NUMBER // 2


ADD = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}


class TestNumbers:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("said", ['{"a": NaN}', '{"a": [-Infinity]}', '{"a": 1e999}', '"{\\"a\\": NaN}"'])
    def test_a_call_with_a_number_that_json_has_not_is_text(self, said: str, stream: bool) -> None:
        answers: list[Response] = []
        text = f'CALL{{"name": "f", "arguments": {said}}}'

        def solve(task: Task, clients: Clients) -> None:
            answers.append(ask(clients["a"], tools=[ADD], stream=stream))
            body = {**ASK, "max_tokens": 99, "stream": stream, "tools": [{"name": "f", "input_schema": {}}]}
            answers.append(send(f"{clients['a'].base_url}/messages", body))

        episode = played(solve, engine=FakeEngine(lambda *_: text))
        assert [answer.status for answer in answers] == [200, 200], answers[-1].body
        assert [action.message for action in episode.actions] == [text] * 2

    def test_a_response_that_cannot_be_made_is_told_and_not_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answers: list[Response] = []

        def solve(task: Task, clients: Clients) -> None:
            for stream in (False, True):
                answers.append(ask(clients["a"], stream=stream))
                answers.append(ask(clients["a"], stream=stream, headers={RETRY: "1"}))

        monkeypatch.setattr(app, "_describe_actions", lambda *_: {"model": "m", "marft": {"a": float("nan")}})
        episode = played(solve)
        assert [answer.status for answer in answers] == [500] * 4
        assert {answer.headers["x-should-retry"] for answer in answers} == {"false"}
        assert answers[0].table["error"]["code"] == "no_response"
        assert len(episode.actions) == 2

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
    def test_one_in_a_request_is_refused_before_it_is_an_action(self, number: str) -> None:
        answers: list[Response] = []

        def solve(task: Task, clients: Clients) -> None:
            body = json.dumps({**ASK, "metadata": {"a": [0.5, "?"]}}).replace('"?"', number).encode()
            answers.extend(send(f"{clients['a'].base_url}/{at}", body) for at in ("chat/completions", "responses"))

        assert played(solve).actions == ()
        assert [answer.status for answer in answers] == [400, 400]
        assert number in answers[0].table["error"]["message"]


def test_roles_in_any_script_are_reached_and_named() -> None:
    answers: list[Response] = []

    def solve(task: Task, clients: Clients) -> None:
        answers.append(ask(clients["役"]))
        answers.append(ask(clients["é"], headers={"x-marft-sees": answers[0].headers["x-marft-action"]}))

    episode = played(solve, "役", "é")
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].headers["x-marft-action"] == "0/%E5%BD%B9/0"
    assert [action.sees for action in episode.actions] == [(), ("0/役/0",)]
