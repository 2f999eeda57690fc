"""The whole team is a tool that clients of the Model Context Protocol find and call."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nights import NIGHT

pytest.importorskip("prometheus_client", reason="needs a server: pip install 'marft[serve]'")
pytest.importorskip("mcp", reason="needs MCP: pip install 'marft[mcp]'")

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from marft.runs.export.exporter import export_run
from marft.runs.run_folder import RunFolder
from marft_serve.gateway.listener import Listener
from marft_serve.serving.mcp import build_team_server, combine_apps
from marft_serve.serving.options import ServeOptions
from tests.docs import blocks
from tests.gateways import send
from tests.servings import Serving, bearer, serving

TASK = "State the final answer to the following arithmetic problem: 23 + 45 - 12 ="


def text_of(result: Any) -> str:
    return "".join(part.text for part in result.content)


async def asked(server: Any, task: str) -> tuple[list[str], str]:
    async with Client(server) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        return tools, text_of(await client.call_tool("ask_team", {"task": task}))


async def called(s: Serving, given: dict[str, Any]) -> Any:
    async with Client(build_team_server(s.app)) as client:
        return await client.call_tool("ask_team", given)


def test_over_http_it_answers_beside_the_rest() -> None:
    with serving() as s:
        listener = Listener(combine_apps(s.app, build_team_server(s.app)), "127.0.0.1", 0, "the test", 5, lifespan=True)
        try:
            assert asyncio.run(asked(f"{listener.address}/mcp", "1 + 2?")) == (["ask_team"], "b says 0")
            assert send(f"{listener.address}/v1/models", None, method="GET").status == 200
        finally:
            listener.close()
        assert s.episodes[0].task.prompt == "1 + 2?"


def test_it_needs_the_token() -> None:
    with serving(token="secret") as s:
        listener = Listener(combine_apps(s.app, build_team_server(s.app)), "127.0.0.1", 0, "the test", 5, lifespan=True)
        try:
            assert send(f"{listener.address}/mcp", {}).status == 401
            assert send(f"{listener.address}/mcp", {}, bearer("secret")).status != 401
        finally:
            listener.close()


@pytest.mark.parametrize("token", ["", "secret"])
def test_it_is_reached_by_whatever_name_others_have_for_the_server_with_a_token_alone(token: str) -> None:
    asks = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", **bearer(token)}
    with serving(token=token) as s:
        listener = Listener(combine_apps(s.app, build_team_server(s.app)), "127.0.0.1", 0, "the test", 5, lifespan=True)
        try:
            answer = send(f"{listener.address}/mcp", asks, {**headers, "host": "team.example.org"})
            page = send(f"{listener.address}/mcp", asks, {**headers, "origin": "http://team.example.org"})
        finally:
            listener.close()
    assert (answer.status, page.status) == ((200, 200) if token else (421, 403))
    assert not token or answer.table["result"]["tools"][0]["name"] == "ask_team"


@pytest.mark.parametrize("given", [{}, {"task": " "}, {"task": 3}, {"question": "1 + 2?"}])
def test_a_call_without_a_task_is_told_what_it_lacks(given: dict[str, Any]) -> None:
    with serving() as s:
        result = asyncio.run(called(s, given))
        assert not s.episodes
    assert result.is_error
    assert text_of(result) == 'ask_team needs a task in words: {"task": "…"}'


def test_why_a_task_was_not_taken_is_said() -> None:
    with serving(options=ServeOptions(concurrency=1, queue=0)) as s:
        s.app.admission.enter()
        result = asyncio.run(called(s, {"task": "1 + 2?"}))
    assert result.is_error
    assert text_of(result).startswith("Error executing tool ask_team: all places are taken; try again in ")


def test_what_the_docs_show_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (block for block in blocks("python") if block.page == "docs/ship.md" and "from mcp" in block.text)
    with serving() as s:
        listener = Listener(combine_apps(s.app, build_team_server(s.app)), "127.0.0.1", 0, "the test", 5, lifespan=True)
        try:
            exec(compile(block.text.replace("http://127.0.0.1:8000", listener.address), block.place, "exec"), {})
            unknown = send(f"{listener.address}/v1/completions", {}).table
        finally:
            listener.close()
    assert capsys.readouterr().out == "b says 0\n"
    assert unknown["error"]["message"].endswith("/metrics, /mcp")


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="test_serve_command.py starts one by day: make nightly")
def test_over_standard_streams_it_is_a_command(trained: RunFolder, tmp_path: Path) -> None:
    export = export_run(trained, "last", tmp_path / "team")
    words = ["-m", "marft", "serve", str(export), "--mcp", "stdio", "--threads", "1"]
    tools, answer = asyncio.run(asked(stdio_client(StdioServerParameters(command=sys.executable, args=words)), TASK))
    assert tools == ["ask_team"]
    assert answer
