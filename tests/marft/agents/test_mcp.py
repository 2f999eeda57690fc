"""Tools of MCP servers: over stdio and HTTP, with the official client and a real server."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marft.agents.tools.mcp import MCP
from marft.common.types import Task
from marft.config.interfaces.tools import ToolSource
from tests.nights import BY_NIGHT
from tests.sources import TESTS
from tests.tool_games import call, run, says, with_tools

SERVER = [sys.executable, str(TESTS / "mcp_server.py")]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def ask(source: ToolSource, tool: str, **arguments: Any) -> str:
    async def once() -> str:
        return await source.open(Task("t", ""), 0).call(tool, arguments)

    return asyncio.run(once())


@pytest.fixture(scope="module")
def stdio() -> Iterator[ToolSource]:
    source = MCP(command=[*SERVER, "stdio"]).connect()
    yield source
    source.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([*SERVER, "http", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/mcp"
    process.kill()
    process.wait()


def test_agents_are_told_what_the_server_says(stdio: ToolSource) -> None:
    tool = next(tool for tool in stdio.tools if tool.name == "add")
    assert tool.description == "Add two numbers."
    assert tool.parameters["required"] == ["a", "b"]


@pytest.mark.slow
def test_a_call_over_stdio_in_an_episode(stdio: ToolSource) -> None:
    turns = (call("add", a=2, b=40) + call("fail"), call("add", a="x"), "ok")
    (action,) = run(with_tools(says(*turns), stdio, seconds=20)).actions
    assert action.calls[0].output == "42"
    assert [c.error for c in action.calls] == [False, True, True]
    assert "fail" in action.calls[1].output


def test_a_call_over_http(url: str) -> None:
    source = MCP(url=url, allowed_tools=["add", "count_up"]).connect()
    try:
        assert [tool.name for tool in source.tools] == ["add", "count_up"]
        assert ask(source, "add", a=1, b=2) == "3"
        (action,) = run(with_tools(says(call("add", a=5, b=5), "ok"), source, seconds=20)).actions
        assert action.calls[0].output == "10"
    finally:
        source.close()


@pytest.mark.slow
def test_a_server_that_dies_loses_one_call_and_is_started_again(stdio: ToolSource) -> None:
    first = ask(stdio, "pid")
    with pytest.raises(Exception, match="closed"):
        ask(stdio, "die")
    second = ask(stdio, "pid")
    assert first != second
    assert not alive(int(first))


@pytest.mark.slow
def test_a_call_that_takes_too_long_holds_up_nobody_else(stdio: ToolSource) -> None:
    (action,) = run(with_tools(says(call("sleep", seconds=3), "ok"), stdio, seconds=0.3)).actions
    assert action.calls[0].output == "sleep took over 0.3 s"
    assert ask(stdio, "add", a=1, b=1) == "2"


@pytest.mark.slow
def test_the_server_sees_only_the_variables_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARFT_SECRET", "hush")
    monkeypatch.setenv("MARFT_KEY", "open")
    source = MCP(command=[*SERVER, "stdio"], env_variables=["MARFT_KEY"]).connect()
    try:
        assert ask(source, "variable", name="MARFT_SECRET") == "nothing"
        assert ask(source, "variable", name="MARFT_KEY") == "open"
    finally:
        source.close()


@BY_NIGHT
@pytest.mark.slow
def test_each_episode_may_have_a_server_of_its_own() -> None:
    source = MCP(command=[*SERVER, "stdio"], per_episode=True).connect()
    try:
        assert source.stateful
        turns = (call("count_up"), call("count_up") + call("pid"), "ok")
        for _ in range(2):
            (action,) = run(with_tools(says(*turns), source, seconds=30)).actions
            assert [c.output for c in action.calls[:2]] == ["1", "2"]
            assert not alive(int(action.calls[2].output))  # it ended with its episode
    finally:
        source.close()


@pytest.mark.slow
def test_a_closed_connection_leaves_no_process() -> None:
    source = MCP(command=[*SERVER, "stdio"]).connect()
    pid = int(ask(source, "pid"))
    assert alive(pid)
    source.close()
    assert not alive(pid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"command": ["no-such-program"]}, "there is no program 'no-such-program'"),
        ({"command": [sys.executable, "-c", "1"]}, "cannot connect to"),
        ({"command": [sys.executable, "-c", "print('hello')"]}, "cannot connect to"),
        ({"url": "http://127.0.0.1:9/mcp"}, "cannot connect to http://127.0.0.1:9/mcp"),
        ({"command": [*SERVER, "stdio"], "allowed_tools": ["ad"]}, "the server has no tool ad; it has add"),
        ({"command": [*SERVER, "stdio"], "env_variables": ["NO_SUCH_VARIABLE"]}, "NO_SUCH_VARIABLE is not set"),
    ],
)
def test_a_server_that_cannot_be_had_is_an_error_that_says_why(table: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        MCP.model_validate({**table, "connect_seconds": 15.0}).connect()
