"""An MCP server that sends what it should not, by standard library alone: ``python mcp_hostile.py stdio|PORT WHAT``."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MEGABYTE = "x" * 2**20
EMPTY = {"type": "object", "properties": {}}


CATASTROPHIC = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}
STRUCTURED = {"structuredContent": {"x": "a" * 40 + "!"}}


def tool(name: str, description: str = "", schema: dict[str, Any] = EMPTY) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": schema}


LISTS = {
    "many": [tool(f"t{number}") for number in range(100_000)],
    "over": [tool(f"t{number}") for number in range(1_001)],
    "name": [tool("n" * 201)],
    "description": [tool("good"), tool("long", "d" * 20_000)],
    "schema": [tool("large", "", {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(5000)}})],
    "evil": [
        {**tool("evil"), "outputSchema": CATASTROPHIC},
        {**tool("promise"), "outputSchema": {"type": "object", "required": ["x"]}},
    ],
    "sum": [tool(f"t{number}", "d" * 16_000) for number in range(100)],
}


def listed(what: str, cursor: str | None) -> dict[str, Any]:
    if what == "pages":
        return {"tools": [], "nextCursor": f"{int(cursor or 0) + 1}"}
    return {"tools": LISTS.get(what, [tool("huge"), tool("wait"), tool("ok")])}


def reply(asked: dict[str, Any], what: str) -> dict[str, Any] | None:
    params = asked.get("params", {})
    if "id" not in asked:
        return None
    result: dict[str, Any]
    if asked["method"] == "initialize":
        about = {"name": "hostile", "version": "1"}
        version = params["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    elif asked["method"] == "tools/list":
        if what == "hang":
            time.sleep(600)
        result = listed(what, params.get("cursor"))
    elif asked["method"] == "tools/call":
        if params["name"] == "wait":
            time.sleep(600)
        text = MEGABYTE * 9 if params["name"] == "huge" else "fine"
        result = {"content": [{"type": "text", "text": text}], **(STRUCTURED if params["name"] == "evil" else {})}
    else:
        return {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no such method"}}
    return {"jsonrpc": "2.0", "id": asked["id"], "result": result}


def garbage(what: str) -> Iterator[str]:
    """What comes in the place of answers."""
    if what == "lines":
        return itertools.repeat("what a fine day\x1b[2J\n")
    if what == "endless":
        return itertools.repeat(MEGABYTE)
    if what == "notices":
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
        return itertools.repeat(json.dumps(note) + "\n")
    return iter(["Hello!\n"] if what == "hello" else [])


def stdio(what: str) -> None:
    for text in garbage(what):
        sys.stdout.write(text)
    sys.stdout.flush()
    if what in ("nothing", "hello"):
        time.sleep(600)
    if what == "bye":
        sys.stdout.write("Goodbye!\n")
        return
    for line in sys.stdin:
        said = reply(json.loads(line), what)
        if said:
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()


class Handler(BaseHTTPRequestHandler):
    what = ""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        said = reply(asked, self.what)
        self.send_response(200 if said else 202)
        events = self.what in ("events", "notices")
        self.send_header("content-type", "text/event-stream" if events else "application/json")
        if self.what == "packed":
            self.send_header("content-encoding", "gzip")
        self.end_headers()
        if not said:
            return
        for text in garbage({"events": "endless"}.get(self.what, self.what)):
            self.wfile.write((f"data: {text}\n" if self.what == "notices" else text).encode())
        self.wfile.write(json.dumps(said).encode())

    def do_GET(self) -> None:
        self.send_error(405)

    do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        stdio(sys.argv[2])
    else:
        Handler.what = sys.argv[2]
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
