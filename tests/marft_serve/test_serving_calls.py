"""Calls of A2A and MCP that their libraries cannot read, or read for seconds, are refused in JSON-RPC's words."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="needs a server: pip install 'marft[serve]'")
pytest.importorskip("a2a", reason="needs A2A: pip install 'marft[a2a]'")
pytest.importorskip("mcp", reason="needs MCP: pip install 'marft[mcp]'")

from marft_serve.gateway.listener import Listener
from marft_serve.serving.mcp import build_team_server, combine_apps
from marft_serve.serving.rpc_checks import MAX_CONTAINERS, MAX_DEPTH, MAX_VALUES, PARSE_ERROR
from tests.agents import agent
from tests.gateways import Response, send

HEADERS = {"content-type": "application/json", "accept": "application/json"}
SENT = {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "1 + 2?"}]}}
CALLED = {"name": "ask_team", "arguments": {"task": "1 + 2?"}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A team that is served as an agent of A2A and as a tool of MCP."""
    with agent() as s:
        listener = Listener(combine_apps(s.app, build_team_server(s.app)), "127.0.0.1", 0, "the test", 5, lifespan=True)
        try:
            yield listener.address
        finally:
            listener.close()


def call(url: str, at: str, metadata: str = "1", id: str = "1") -> Response:
    """Ask the team at ``/a2a`` or ``/mcp``; something is written into the request as it is."""
    if at == "a2a":
        method, params = "SendMessage", {**SENT, "metadata": {"a": "PLACE"}}
    else:
        method, params = "tools/call", {**CALLED, "_meta": {"a": "PLACE"}}
    body = json.dumps({"jsonrpc": "2.0", "id": "ID", "method": method, "params": params})
    body = body.replace('"PLACE"', metadata).replace('"ID"', id)
    return send(f"{url}/{at}", body.encode(), {**HEADERS, "a2a-version": "1.0"} if at == "a2a" else HEADERS)


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize("at", ["a2a", "mcp"])
@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ("9" * 401, "a number has at most 400 digits, and one has 401"),
        ("NaN", "NaN is no finite number"),
        ("-1e999", "-1e999 is no finite number"),
        (nested(MAX_DEPTH), f"nests at most {MAX_DEPTH} tables and lists"),
        (nested(100_000), ""),
        (r'"\ud800"', "half of a character"),
        (f"[{'[],' * MAX_CONTAINERS}1]", f"at most {MAX_CONTAINERS} tables and lists"),
        (f"[{'1,' * MAX_VALUES}1]", f"at most {MAX_VALUES} values"),
        ("[1", "Expecting"),
    ],
)
def test_what_the_libraries_cannot_read_is_refused_in_words(url: str, at: str, metadata: str, says: str) -> None:
    answer = call(url, at, metadata)
    assert answer.status == (200 if at == "a2a" else 400)
    assert (answer.table["jsonrpc"], answer.table["id"], answer.table["error"]["code"]) == ("2.0", None, PARSE_ERROR)
    assert says in answer.table["error"]["message"]


@pytest.mark.parametrize("at", ["a2a", "mcp"])
def test_an_id_that_no_response_can_repeat_is_refused(url: str, at: str) -> None:
    assert "half of a character" in call(url, at, id=r'"\ud800"').table["error"]["message"]


@pytest.mark.parametrize("at", ["a2a", "mcp"])
@pytest.mark.parametrize(
    "metadata", [nested(MAX_DEPTH - 4), "9" * 300, f"[{'1,' * 4000}1]", json.dumps("[," * 50_000), '"日本"']
)
def test_what_lies_within_the_bounds_is_answered(url: str, at: str, metadata: str) -> None:
    answer = call(url, at, metadata)
    assert answer.status == 200
    assert "b says 0" in str(answer.table["result"])


def test_what_a_client_does_wrong_fills_no_log(url: str, caplog: pytest.LogCaptureFixture) -> None:
    def sent(at: str, method: str, params: Any) -> int:
        table = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return int(send(f"{url}/{at}", table, {**HEADERS, "a2a-version": "1.0"}).table["error"]["code"])

    with caplog.at_level(logging.ERROR):
        codes = [
            sent("a2a", "GetExtendedAgentCard", {}), sent("a2a", "SendMessage", []), sent("a2a", "GetTask", {"id": "x"}),
            sent("mcp", "prompts/get", {"name": "x"}), sent("mcp", "resources/read", {"uri": "file:///x"}),
            sent("mcp", "tools/call", 3),
        ]  # fmt: skip
    assert -32603 not in codes
    assert not caplog.records


def test_a_team_as_a_tool_leaves_the_logging_of_the_process_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    level = logging.root.level
    with agent() as s:
        build_team_server(s.app)
    assert (logging.root.level, logging.root.handlers) == (level, [])
