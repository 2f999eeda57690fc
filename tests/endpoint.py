"""A server that speaks like an OpenAI-compatible endpoint, or fails in any way wanted, on a real socket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-very-secret-123"


@dataclass
class Reply:
    """What the server does about one request."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False  # sends nothing
    drip: bool = False  # sends a byte now and then, for ever


def says(
    text: str | None,
    *,
    finish: str | None = "stop",
    calls: list[dict[str, Any]] | None = None,
    usage: tuple[int, int] = (7, 3),
) -> Reply:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [{"id": f"c{n}", "type": "function", "function": call} for n, call in enumerate(calls)]
    table = {
        "id": "1", "object": "chat.completion", "created": 0, "model": "gpt-x",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)},
    }  # fmt: skip
    return Reply(json.dumps(table).encode())


def error(status: int, message: str = "no", **headers: str) -> Reply:
    return Reply(json.dumps({"error": {"message": message}}).encode(), status, headers)


class Server:
    """``answer`` is given a request's body and how many came before it."""

    def __init__(self, answer: Callable[[dict[str, Any], int], Reply]) -> None:
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.at_once, self.most_at_once = 0, 0
        self.lock, self.ending = threading.Lock(), threading.Event()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        with self.lock:
            number = len(self.requests)
            self.requests.append(body)
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
            self.times.append(time.monotonic())
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            reply = self.answer(body, number)
        finally:
            with self.lock:
                self.at_once -= 1
        if reply.hang:
            self.ending.wait(20)
            return
        request.send_response(reply.status)
        for name, value in {"Content-Type": "application/json", **reply.headers}.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(1_000_000 if reply.drip else len(reply.body)))
        request.end_headers()
        while reply.drip and not self.ending.wait(0.02):
            request.wfile.write(b" ")
            request.wfile.flush()
        request.wfile.write(reply.body)


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            try:
                server.serve(self)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def serving(answer: Callable[[dict[str, Any], int], Reply]) -> Iterator[Server]:
    server = Server(answer)
    thread = threading.Thread(target=lambda: server.http.serve_forever(0.02), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ending.set()
        server.http.shutdown()
        server.http.server_close()
        thread.join()
