"""Where a team is offered: who is refused before anything is loaded, what the server says of itself, and at no address."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="needs a server: pip install 'marft[serve]'")

from marft_serve.cli import serving as shipping
from marft_serve.serving import server
from marft_serve.serving.options import ServeOptions, format_startup
from tests.gateways import send
from tests.servings import serving

HERE, MODELS = "http://127.0.0.1:8000", ("demo", "team", "a")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host": "0.0.0.0"}, "others than this machine could ask, and no token is set"),
        ({"token": "a b"}, "characters that no header can carry"),
        ({"public_url": "team"}, "is no address such as"),
        ({"public_url": "https://["}, "--public-url: 'https://\\[' is no address such as"),
    ],
)
def test_what_cannot_be_offered_is_refused_before_models_are_thought_of(
    options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def imports_transformers() -> None:
        raise AssertionError("is not reached")

    monkeypatch.setattr(shipping, "silence_transformers", imports_transformers)
    with pytest.raises(ValueError, match=words):
        shipping.serve(Path("nowhere"), (), ServeOptions(port=0, **options))


def test_a_port_that_is_taken_is_refused_before_models_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(_: object) -> None:
        raise AssertionError("is not reached")

    monkeypatch.setattr(server, "load_team", loads)
    nobody: Any = SimpleNamespace(run=None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = ServeOptions(port=taken.getsockname()[1])
        with pytest.raises(ValueError, match=f"marft serve cannot listen on 127.0.0.1 port {place.port}"):
            server.run_server(nobody, place)
        with pytest.raises(AssertionError, match="is not reached"):  # where it listens nowhere
            server.run_server(nobody, replace(place, mcp="stdio"))


def test_it_says_where_it_is_who_may_ask_and_what_is_kept() -> None:
    said = list(
        format_startup(HERE, MODELS, ServeOptions(token="secret", mcp="http", a2a=True, record=Path("/var/asked")))
    )
    assert said == [
        f"{HERE}/v1 answers for demo, team, a",
        f"{HERE}/mcp offers the team as a tool of MCP: ask_team",
        f"{HERE}/a2a offers the team as an agent of A2A",
        "requests need the token, as a bearer token or as x-api-key",
        "sessions are recorded in /var/asked",
    ]
    assert list(format_startup(HERE, MODELS, ServeOptions()))[1:] == [
        "no token is needed: this machine alone may ask", "nothing is recorded",
    ]  # fmt: skip
    (_, who, _) = format_startup(HERE, MODELS, ServeOptions("0.0.0.0", allow_remote=True))
    assert who == "no token is needed: anybody who reaches it may ask"


@pytest.mark.parametrize("path", ["v1/completions", "v1/embeddings", "", "healthz/", "v1/chat/completions/"])
def test_an_address_where_nothing_is_served_names_those_where_something_is(path: str) -> None:
    with serving() as s:
        answer = send(f"{s.url}/{path}", {})
    assert (answer.status, answer.table["error"]["code"]) == (404, "not_found")
    assert answer.table["error"]["message"] == (
        "nothing is served at this address; these are: /v1/chat/completions, /v1/responses, /v1/messages, /v1/models, "
        "/healthz, /metrics"
    )
