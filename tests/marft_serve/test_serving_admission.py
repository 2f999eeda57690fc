"""Who is answered by a team that is served, and at what cost to everybody else: before a body is read, and while it is."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("prometheus_client", reason="needs a server: pip install 'marft[serve]'")

from marft.common.texts import cut_at_stop
from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.hosts import is_allowed_host, is_allowed_origin
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.serving.options import ServeOptions
from tests.fakes import FakeEngine
from tests.gateways import send
from tests.servings import Held, bearer, serving

ALL = ("v1/models", "v1/models/a", "metrics", "healthz", "v1/nothing")
ASKED = ("v1/chat/completions", "v1/responses", "v1/messages", "v1/messages/count_tokens")
USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.5", "[::1", "localhost/x", "x@localhost"],
)
def test_without_a_token_no_address_answers_to_the_name_of_another_host(host: str) -> None:
    with serving() as s:
        read = [send(f"{s.url}/{path}", None, {"host": host}, "GET").status for path in ALL]
        asked = [send(f"{s.url}/{path}", {}, {"host": host}) for path in ASKED]
        assert not s.episodes
    assert {*read, *(one.status for one in asked)} == {421}
    assert asked[0].table["error"]["code"] == "wrong_host"
    assert asked[2].table["type"] == "error", "as that protocol has it"


MALFORMED = (
    "localhost:evil", "localhost:", "localhost:80:80", "localhost:-1", "localhost:65536", "localhost:8 0", "localhost:٣",
    "localhost@evil", "a@localhost", "[::1", "::1]", "[::1]x", "[::1]:evil", "[localhost]", "[::1%25lo]", "localhost?x",
    "localhost\\evil", "localhost,evil", " ", "", "[]", ":80", "127.0.0.1;x", "127.1:evil", "http://localhost",
)  # fmt: skip


@pytest.mark.parametrize("host", MALFORMED)
def test_a_host_or_origin_that_is_malformed_is_nobodys(host: str) -> None:
    assert not is_allowed_host(host, "127.0.0.1")
    assert not is_allowed_origin(f"http://{host}", "127.0.0.1")


@pytest.mark.parametrize("origin", ["localhost", "//localhost", "http:localhost", "file://", "http://localhost/", ""])
def test_an_origin_is_a_scheme_and_a_host(origin: str) -> None:
    assert not is_allowed_origin(origin, "127.0.0.1")
    assert is_allowed_origin("http://localhost:3000", "127.0.0.1")
    assert is_allowed_origin("https://[::1]", "127.0.0.1")


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("Host: localhost",), 200), (("Host: localhost:evil",), 421), (("Host:",), 421), ((), 421),
        (("Host: localhost", "Host: evil.example"), 421), (("Host: localhost", "Host: localhost"), 421),
        (("Host: localhost", "Origin: http://localhost:evil"), 403), (("Host: localhost", "Origin:"), 403),
        (("Host: localhost", "Origin: http://localhost", "Origin: http://evil.example"), 403),
        (("Host: localhost", "Origin: http://localhost:3000"), 200),
    ],
)  # fmt: skip
def test_a_server_without_a_token_reads_its_headers_strictly(lines: Sequence[str], status: int) -> None:
    with serving() as s:
        parts = urlsplit(s.url)
        with socket.create_connection((parts.hostname, parts.port), 10) as connection:
            connection.sendall("\r\n".join(["GET /healthz HTTP/1.1", *lines, "Connection: close", "", ""]).encode())
            answer = connection.makefile("rb").readline()
    assert int(answer.split()[1]) in {status, 400 if status == 421 else status}, answer


@pytest.mark.parametrize("path", ["v1/messages/count_tokens", "v1/models", "metrics"])
def test_a_fault_of_ours_is_said_in_words_and_logged(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("inside")

    with serving("a") as s:
        monkeypatch.setattr("marft_serve.serving.team_handler.TeamHandler.count_tokens", fails)
        monkeypatch.setattr("marft_serve.serving.app.App.check_token", fails)
        counts = path.endswith("count_tokens")
        body = {"model": "a", "messages": [USER]} if counts else None
        answer = send(f"{s.url}/{path}", body, method="POST" if counts else "GET")
    assert (answer.status, answer.table["error"]["message"]) == (
        500, "the server could not answer this request; its log says why"
    )  # fmt: skip
    assert answer.table.get("type", "") == ("error" if counts else "")
    assert "inside" in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9", "LOCALHOST", "[::1]:7", "127.1.2.3"])
def test_this_machines_own_names_are_answered_to(host: str) -> None:
    with serving() as s:
        assert send(f"{s.url}/healthz", None, {"host": host}, "GET").status == 200


def test_with_a_token_any_name_is_for_a_page_has_none() -> None:
    with serving(token="secret") as s:
        assert send(f"{s.url}/v1/models", None, {"host": "team.example.org"}, "GET").status == 401
        assert send(f"{s.url}/v1/models", None, {"host": "team.example.org", **bearer("secret")}, "GET").status == 200


@pytest.mark.parametrize("path", ["metrics", "healthz", "v1/models"])
def test_no_page_of_another_host_reads_what_is_read(path: str) -> None:
    with serving() as s:
        for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
            assert send(f"{s.url}/{path}", None, {"origin": origin}, "GET").status == 403


def test_beyond_this_machine_its_addresses_and_its_own_name_count() -> None:
    ours = [("10.0.0.5:80", "0.0.0.0"), ("team.example.org", "team.example.org"), ("10.0.0.5", "::")]
    assert all(is_allowed_host(host, listening) for host, listening in ours)
    assert is_allowed_host("team.example.org", "0.0.0.0", ["team.example.org"])
    assert not is_allowed_host("evil.example", "0.0.0.0", ["team.example.org"])


def test_where_all_places_are_taken_no_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, read = Held(), list[bytes]()
    with serving("a", engine=engine, options=ServeOptions(concurrency=1, queue=0)) as s, ThreadPoolExecutor(1) as crowd:
        first = crowd.submit(s.ask, "a")
        while not engine.waiting:
            time.sleep(0.01)
        monkeypatch.setattr("marft_serve.serving.app.parse_request", lambda _, body: read.append(body))
        assert [send(f"{s.url}/{path}", b"{").status for path in ASKED[:3]] == [429] * 3
        monkeypatch.undo()
        engine.may.set()
        assert first.result().status == 200
    assert read == []


def test_tokens_are_counted_of_a_role_as_it_reads_them_and_of_no_team() -> None:
    body = {"messages": [USER], "max_tokens": 9}
    with serving("a") as s:
        counted = send(f"{s.url}/v1/messages/count_tokens", {"model": "a", "messages": [USER]})
        asked = send(f"{s.url}/v1/messages", {"model": "a", **body})
        team = send(f"{s.url}/v1/messages/count_tokens", {"model": "team", "messages": [USER]})
    assert counted.table["input_tokens"] == asked.table["usage"]["input_tokens"]
    assert (team.status, team.table["type"]) == (400, "error")


def test_a_teams_answer_is_as_short_as_a_client_asks() -> None:
    seen: list[Any] = []

    class Seeing(FakeEngine):
        async def sample(self, policy: str, prompt: Any, sampling: Any, key: Any) -> Any:
            seen.append((key.agent, sampling.max_new_tokens, sampling.stop))
            return await super().sample(policy, prompt, sampling, key)

    with serving("a", "b", engine=Seeing()) as s:
        table = s.ask("team", max_tokens=3, stop="!").table
        own = s.game.team.agents[0].sampling.max_new_tokens
    assert {most for _, most, _ in seen} <= {3, own}
    assert seen[-1] == ("b", 3, ("!",))
    assert "ignored" not in table["marft"]


@pytest.mark.parametrize(
    ("said", "stops", "reason", "sequence"),
    [
        ("It is 3. STOP", ["!", "STOP"], "stop_sequence", "STOP"), ("It is 3.", ["STOP"], "end_turn", None),
        ("STOP", ["STOP"], "stop_sequence", "STOP"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_is_told_which_stop_sequence_ended_a_teams_answer(
    said: str, stops: list[str], reason: str, sequence: str | None, stream: bool
) -> None:
    class Stopping(FakeEngine):
        async def sample(self, policy: str, prompt: Any, sampling: Any, key: Any) -> Any:
            whole = await super().sample(policy, prompt, sampling, key)
            return replace(whole, text=cut_at_stop(whole.text, sampling.stop))

    with serving("a", "b", engine=Stopping(lambda key, _: said if key.agent == "b" else "STOP it")) as s:
        body = {"model": "team", "messages": [USER], "max_tokens": 99, "stop_sequences": stops, "stream": stream}
        answer = send(f"{s.url}/v1/messages", body)
    deltas = answer.body.decode().partition("event: message_delta\ndata: ")[2]
    told = json.loads(deltas.split("\n")[0])["delta"] if stream else answer.table
    assert (told["stop_reason"], told["stop_sequence"]) == (reason, sequence)


def test_healthz_fails_while_the_engine_cannot_go_on() -> None:
    engine = FakeEngine()
    with serving("a", engine=engine) as s:
        engine.problem = "RuntimeError: device lost"  # type: ignore[attr-defined]
        told = send(f"{s.url}/healthz", None, method="GET")
        engine.problem = ""  # type: ignore[attr-defined]
        assert send(f"{s.url}/healthz", None, method="GET").status == 200
    assert (told.status, b"device lost" in told.body) == (503, True)


def test_a_request_that_is_refused_leaves_its_place() -> None:
    with serving("a", options=ServeOptions(concurrency=1, queue=0)) as s:
        for _ in range(3):
            assert send(f"{s.url}/v1/chat/completions", b"{").status == 400
        assert s.ask("a").status == 200
        assert (s.app.admission.running, s.app.admission.waiting) == (0, 0)


LARGE: dict[str, tuple[dict[str, Any], int]] = {
    "messages": ({"messages": [{"role": "user", "content": "xxxxx"}] * 60_000}, 400),
    "parts": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 100}] * 800}, 400),
    "tools": ({"messages": [USER], "tools": [{"type": "function", "function": {"name": "f"}}] * 50_000}, 400),
    "lists": ({"messages": [USER], "metadata": {"x": [[]] * 700_000}}, 400),
    "values": ({"messages": [USER], "metadata": {"x": [1] * 1_000_000}}, 400),
    "a text of signs": ({"messages": [{"role": "user", "content": '{[,\\"' * 500_000}]}, 400),
    "a text": ({"messages": [{"role": "user", "content": "word " * 600_000}]}, 400),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGE)
def test_a_large_body_is_read_on_a_thread_and_refused_at_little_cost(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds are a processor's: whoever else wants it has it meanwhile."""
    body, status = LARGE[kind]
    threads, seconds = list[str](), list[float]()

    def read(self: ChatCompletions, body: bytes, *more: Any) -> Any:
        threads.append(threading.current_thread().name)
        began = time.thread_time()
        try:
            return before(self, body, *more)
        finally:
            seconds.append(time.thread_time() - began)

    before = ChatCompletions.parse_request
    with serving("a") as s:
        s.ask("a")
        monkeypatch.setattr(ChatCompletions, "parse_request", read)
        answer = send(f"{s.url}/v1/chat/completions", json.dumps({"model": "a", **body}).encode())
        assert s.ask("a").status == 200
    assert answer.status == status, answer.body[:500]
    assert threads[0].startswith("asyncio_"), "not on the server's own"
    assert not threads[1].startswith("asyncio_"), "a small one is read where it came"
    assert seconds[0] < 0.5


def test_a_text_of_many_signs_is_one_value() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": '{[,\\"' * 100_000}]})
    assert ChatCompletions().parse_request(body.encode()).chat.messages


@pytest.mark.parametrize("body", [b'"' + b'\\"' * 1_000_000, b'{"a":"' + b"\\" * 999_999, b'"' * 999_999])
def test_a_body_that_is_no_json_is_refused_in_time(body: bytes) -> None:
    began = time.thread_time()
    with pytest.raises(RequestError):
        ChatCompletions().parse_request(body + b"[" * 40_000)
    assert time.thread_time() - began < 2
