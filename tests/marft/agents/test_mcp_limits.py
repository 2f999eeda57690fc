"""MCP servers that send too much, or what is no message: refused in words and in time, and ended."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from marft.agents.tools.mcp import MCP
from tests.marft.agents.test_mcp import alive, ask
from tests.marft.common.test_subreaper import linux, soon
from tests.nights import BY_NIGHT
from tests.sources import TESTS

HOSTILE = [sys.executable, str(TESTS / "mcp_hostile.py")]
SECONDS = 15.0  # until a server must have been refused; the machine has others to serve
TOO_MUCH = {
    "many": "more than 8 MiB",
    "over": "it lists more than 1,000 tools",
    "pages": "100 pages of them",
    "name": "the name of its tool 'n+' has 201 characters, more than 200; name in only",
    "description": "the description of its tool 'long' has 20,000 characters, more than 16,384; name in only",
    "schema": "the schema of arguments of its tool 'large' has .* characters, more than 65,536; name in only",
    "sum": "its 100 tools have .* characters, more than 1,048,576; name in only",
    "lines": r"more than 10,000 lines or 32 MiB .*the last 'what a fine day.*standard error",
    "endless": "a message of more than 8 MiB",
    "notices": "more than 10,000 lines",
    "hello": r"it did not answer in 2 s \(connect_seconds\); 1 of its lines .*'Hello!'",
    "nothing": r"it did not answer in 2 s \(connect_seconds\)",
    "bye": "the last 'Goodbye!'",
}
OVER_HTTP = ("over", "pages", "description", "lines", "endless", "events", "notices", "packed", "many")
BY_DAY = {"over", "pages", "schema", "lines", "endless", "events", "packed", "nothing", "bye"}  # one of each bound


def each(*names: str) -> list[object]:
    return [pytest.param(name, marks=() if name in BY_DAY else BY_NIGHT) for name in names]


@contextmanager
def served(what: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([*HOSTILE, str(port), what], stderr=subprocess.DEVNULL)
    try:
        assert soon(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("what", each(*TOO_MUCH))
def test_a_server_that_sends_too_much_is_refused_in_words(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match=f"mcp_hostile.py stdio {what}: .*{TOO_MUCH[what]}") as caught:
        MCP(command=[*HOSTILE, "stdio", what], connect_seconds=2.0 if what in ("hello", "nothing") else 60.0).connect()
    assert time.monotonic() - began < SECONDS
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("what", each(*OVER_HTTP))
def test_a_server_over_http_is_bounded_too(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    why = TOO_MUCH | {"lines": "JSON", "events": "SSE|event", "packed": "it compresses .gzip.", "endless": "8 MiB"}
    with served(what) as url:
        began = time.monotonic()
        with pytest.raises(ValueError, match=f"{url}: .*({why[what]})"):
            MCP(url=url, connect_seconds=60.0).connect()
        assert time.monotonic() - began < SECONDS
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_tool_that_is_too_large_is_left_out_by_name() -> None:
    source = MCP(command=[*HOSTILE, "stdio", "description"], allowed_tools=["good"]).connect()
    source.close()
    assert [tool.name for tool in source.tools] == ["good"]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stdio", "http"])
def test_a_result_that_is_too_large_loses_its_call_alone(way: str) -> None:
    with served("fine") as url:
        source = (MCP(url=url) if way == "http" else MCP(command=[*HOSTILE, "stdio", "fine"])).connect()
        try:
            with pytest.raises(RuntimeError, match="it sent a message of more than 8 MiB"):
                ask(source, "huge")
            assert ask(source, "ok") == "fine"
        finally:
            source.close()


@pytest.mark.slow
def test_records_of_others_are_still_logged(caplog: pytest.LogCaptureFixture) -> None:
    MCP(command=[*HOSTILE, "stdio", "fine"]).connect().close()
    logging.getLogger("client").warning("of somebody else's module")
    assert "of somebody else's module" in caplog.text


MAIN = """\
import asyncio, signal, sys
from marft.cli.shutdown import handle_sigterm
from marft.agents.tools.mcp import MCP
from marft.common.types import Task
signal.signal(signal.SIGTERM, handle_sigterm)
signal.signal(signal.SIGINT, signal.default_int_handler)
print("begun", flush=True)
source = MCP(command=["sh", "-c", 'echo $$ > "$0"; exec "$@"', *sys.argv[1:]]).connect()
try:
    asyncio.run(source.open(Task("t", ""), 0).call("wait", {}))
finally:
    source.close()
"""


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "number"),
    [
        ("hang", signal.SIGTERM),
        pytest.param("fine", signal.SIGINT, marks=BY_NIGHT),
        pytest.param("hang", signal.SIGINT, marks=BY_NIGHT),
        pytest.param("fine", signal.SIGTERM, marks=BY_NIGHT),
    ],
)
def test_a_signal_while_listing_or_calling_ends_the_server_too(what: str, number: int, tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    command = [sys.executable, "-c", MAIN, str(noted), *HOSTILE, "stdio", what]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        assert soon(lambda: noted.exists() and noted.read_text().endswith("\n"), 60)
        time.sleep(2.0)  # it lists, or calls
        began = time.monotonic()
        os.kill(process.pid, number)
        process.wait(30)
        assert time.monotonic() - began < 5.0
    assert soon(lambda: not alive(int(noted.read_text())))


@pytest.mark.slow
def test_an_agent_reads_a_result_whatever_its_schema_says_and_no_pattern_is_searched_for() -> None:
    source = MCP(command=(*HOSTILE, "stdio", "evil")).connect()
    try:
        assert ask(source, "evil") == 'fine\n{"x": "' + "a" * 40 + '!"}'
        assert ask(source, "promise") == "fine"
    finally:
        source.close()
