"""A stand-in for the Hugging Face hub: it takes what is uploaded, and keeps it."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hub(ThreadingHTTPServer):
    """What it was sent: files by name, the requests in their order, and the tokens that came with them.

    Args:
        refuses: the status that everything that is sent is refused with; 0: it is taken.
    """

    def __init__(self, refuses: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.refuses = refuses
        self.files: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.made: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.tokens: set[str] = set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        hub, body = self.server, self._read()
        if hub.refuses:
            self._answer({"error": "You do not have the rights to do that"}, hub.refuses)
        elif self.path == "/api/repos/create":
            made = json.loads(body)
            hub.made.append(made)
            self._answer({"url": f"{hub.url}/{made['organization']}/{made['name']}"})
        elif "/preupload/" in self.path:
            kinds = {True: "lfs", False: "regular"}
            files = [one["path"] for one in json.loads(body)["files"]]
            modes = [
                {"path": one, "uploadMode": kinds[one.endswith(".safetensors")], "shouldIgnore": False} for one in files
            ]
            self._answer({"files": modes})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = [
                {"oid": one["oid"], "size": one["size"], "actions": {"upload": {"href": f"{hub.url}/lfs/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            self._answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in self.path:
            self._commit([json.loads(line) for line in body.decode().splitlines()])
        else:
            self._answer({"errors": [], "warnings": []})

    def do_PUT(self) -> None:
        data = self._read()
        assert self.path == f"/lfs/{hashlib.sha256(data).hexdigest()}"
        self.server.blobs[self.path.rpartition("/")[2]] = data
        self._answer({})

    def do_GET(self) -> None:
        self._read()
        self._answer({"error": "not here"}, 404)

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        hub = self.server
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                hub.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                hub.files[value["path"]] = hub.blobs[value["oid"]]
        self._answer({"success": True, "commitOid": "0" * 40, "commitUrl": f"{hub.url}/me/team/commit/{'0' * 40}"})

    def _read(self) -> bytes:
        self.server.asked.append(f"{self.command} {self.path}")
        self.server.tokens.add(self.headers.get("authorization", ""))
        if self.headers.get("transfer-encoding", "") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _answer(self, table: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(table).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: a test says what it has to say."""


@contextmanager
def hub(refuses: int = 0) -> Iterator[Hub]:
    server = Hub(refuses)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
