"""An MCP server for the tests: ``python mcp_server.py stdio`` or ``http PORT``."""

from __future__ import annotations

import os
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("marft-tests")
count = 0


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def count_up() -> int:
    """How often this has been called."""
    global count
    count += 1
    return count


@server.tool()
def fail() -> str:
    """Always fails."""
    raise RuntimeError("out of ink")


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


@server.tool()
def sleep(seconds: float) -> str:
    """Sleeps."""
    time.sleep(seconds)
    return "awake"


@server.tool()
def pid() -> int:
    """The server's process."""
    return os.getpid()


@server.tool()
def variable(name: str) -> str:
    """What the server sees of the environment."""
    return os.environ.get(name, "nothing")


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
