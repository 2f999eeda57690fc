"""The whole team is a tool that clients of the Model Context Protocol find and call."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="needs a server: pip install 'marft[serve]'")
pytest.importorskip("mcp", reason="needs MCP: pip install 'marft[mcp]'")

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from marft.export.writing import export_run
from marft.gateway.listening import Listener
from marft.runs.folder import RunFolder
from marft.serving.mcp import beside, team_server
from tests.gateways import send
from tests.servings import bearer, serving

TASK = "State the final answer to the following arithmetic problem: 23 + 45 - 12 ="


def text_of(result: Any) -> str:
    return "".join(part.text for part in result.content)


async def asked(server: Any, task: str) -> tuple[list[str], str]:
    async with Client(server) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        return tools, text_of(await client.call_tool("ask_team", {"task": task}))


def test_over_http_it_answers_beside_the_rest() -> None:
    with serving() as s:
        listener = Listener(beside(s.app, team_server(s.app)), "127.0.0.1", 0, "the test", 5, lifespan=True)
        try:
            assert asyncio.run(asked(f"{listener.address}/mcp", "1 + 2?")) == (["ask_team"], "b says 0")
            assert send(f"{listener.address}/v1/models", None, method="GET").status == 200
        finally:
            listener.close()
        assert s.episodes[0].task.prompt == "1 + 2?"


def test_it_needs_the_token() -> None:
    with serving(token="secret") as s:
        listener = Listener(beside(s.app, team_server(s.app)), "127.0.0.1", 0, "the test", 5, lifespan=True)
        try:
            assert send(f"{listener.address}/mcp", {}).status == 401
            assert send(f"{listener.address}/mcp", {}, bearer("secret")).status != 401
        finally:
            listener.close()


@pytest.mark.slow
def test_over_standard_streams_it_is_a_command(trained: RunFolder, tmp_path: Path) -> None:
    export = export_run(trained, "last", tmp_path / "team")
    words = ["-m", "marft", "serve", str(export), "--mcp", "stdio", "--threads", "1"]
    tools, answer = asyncio.run(asked(stdio_client(StdioServerParameters(command=sys.executable, args=words)), TASK))
    assert tools == ["ask_team"]
    assert answer
