"""MCP servers that hang, say nothing, hide behind launchers or come too late: nothing waits for ever, nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from typing import Any

import pytest

from marft.agents.tools import mcp
from marft.agents.tools.mcp import MCP, SharedServer
from marft.agents.tools.transports import ServerTraffic
from tests.marft.agents.test_mcp import SERVER, ask
from tests.marft.common.test_subreaper import gone, linux, soon
from tests.nights import BY_NIGHT, NIGHT
from tests.tool_games import call, run, says, with_tools

SILENT = [sys.executable, "-c", "import time; time.sleep(300)"]


def threads() -> int:
    return sum(thread.name == "marft-session" for thread in threading.enumerate())


@pytest.mark.slow
@linux
@pytest.mark.skipif(not NIGHT, reason="it waits for seconds: make nightly")
def test_a_server_that_hangs_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "PING_SECONDS", 0.5)
    source = MCP(command=[*SERVER, "stdio"]).connect()
    try:
        first = int(ask(source, "pid"))
        os.kill(first, signal.SIGSTOP)
        turns = (call("count_up"), "ok")
        (action,) = run(with_tools(says(*turns), source, seconds=0.3)).actions
        assert action.calls[0].output == "count_up took over 0.3 s"
        second = int(ask(source, "pid"))
        assert first != second
        assert soon(lambda: gone(first))
    finally:
        source.close()
    assert soon(lambda: gone(second))


@BY_NIGHT
@pytest.mark.slow
def test_a_call_that_was_too_slow_leaves_a_server_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "PING_SECONDS", 15.0)
    source = MCP(command=[*SERVER, "stdio"]).connect()
    try:
        first = ask(source, "pid")
        run(with_tools(says(call("sleep", seconds=1), "ok"), source, seconds=0.3))
        assert ask(source, "pid") == first
    finally:
        source.close()


@BY_NIGHT
@pytest.mark.slow
def test_a_server_that_never_answers_is_an_error_in_time_and_ends() -> None:
    before, began = threads(), time.monotonic()
    with pytest.raises(ValueError, match=r"cannot connect to .*: it did not answer in 0.5 s \(connect_seconds\)"):
        MCP(command=SILENT, connect_seconds=0.5).connect()
    assert time.monotonic() - began < 10
    assert soon(lambda: threads() == before)


@BY_NIGHT
@pytest.mark.slow
@linux
def test_a_server_that_comes_too_late_for_its_episode_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    source = MCP(command=[*SERVER, "stdio"], per_episode=True, connect_seconds=5).connect()
    started = []
    made = mcp._build_client

    async def slow(*arguments: Any) -> Any:
        started.append(time.monotonic())
        return await made(*arguments)

    monkeypatch.setattr(mcp, "_build_client", slow)
    monkeypatch.setattr(source, "settings", MCP(command=SILENT, per_episode=True, connect_seconds=60))
    before = threads()
    g = with_tools(says(call("count_up"), "ok"), source, seconds=0.3)
    (action,) = run(g).actions
    assert action.calls[0].output == "count_up took over 0.3 s"
    assert len(started) == 1
    assert soon(lambda: not source._connections, 10)
    g.threads.close()
    assert soon(lambda: threads() <= before, 10)
    source.close()


@pytest.mark.slow
@linux
def test_a_server_behind_a_launcher_ends_with_its_connection() -> None:
    words = " ".join([*SERVER, "stdio"])
    source = MCP(command=["sh", "-c", f"{words}; true"]).connect()
    pid = int(ask(source, "pid"))
    source.close()
    assert soon(lambda: gone(pid))


@pytest.mark.parametrize("value", ["Bearer sk-hush-\u00e9", "Bearer sk-hush\nX: y", "Bearer sk-hush\x1b[2J"])
def test_no_error_says_what_a_header_holds(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", value)
    table = {"url": "http://127.0.0.1:9/mcp", "header_variables": {"Authorization": "SEARCH_KEY"}}
    with pytest.raises(ValueError, match="variable SEARCH_KEY holds characters that no key has") as caught:
        MCP.model_validate(table).connect()
    assert "hush" not in str(caught.value)


def test_white_space_around_a_key_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_KEY", "Bearer sk-hush\n")
    table = {"url": "http://127.0.0.1:9/mcp", "header_variables": {"Authorization": "SEARCH_KEY"}}
    settings = MCP.model_validate(table)
    assert mcp._http_client(settings, ServerTraffic()).headers["Authorization"] == "Bearer sk-hush"
    assert mcp._first_cause(OSError("said Bearer sk-hush!"), settings) == "said ***!"


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"url": "127.0.0.1:8000/mcp"}, "must look like https://host"),
        ({"url": "http://me:hush@host/mcp"}, r"in an environment variable \(header_variables\)"),
        ({"url": "http://host/mcp?key=hush"}, "must look like https://host"),
        (
            {"url": "http://host/mcp", "log_file": "x", "env_variables": ["A"]},
            "env_variables, log_file would do nothing for a server with a url",
        ),
        (
            {"command": ["x"], "header_variables": {"A": "B"}},
            "header_variables would do nothing for a server with a command",
        ),
        ({"url": "http://host/mcp", "header_variables": {"A b": "B"}}, "no header can be called 'A b'"),
        ({"command": ["x"], "url": "http://host/mcp"}, "needs either"),
    ],
)
def test_what_makes_no_sense_is_refused(table: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        MCP.model_validate(table)


@pytest.mark.slow
def test_a_closed_connection_says_so() -> None:
    source = MCP(command=[*SERVER, "stdio"]).connect()
    source.close()
    assert isinstance(source, SharedServer)
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(source.call("pid", {}))
