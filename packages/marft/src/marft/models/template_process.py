"""The program that renders chat templates and parses turns by response templates. Its child does the work, so that a
template can be stopped at any point."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from transformers.utils import chat_template_utils
from transformers.utils.chat_parsing import parse_response

MEMORY_MB = 1024  # of the child; it takes about 200 MB itself
MOST_TEXT = 16 * 2**20  # characters of a rendered chat
MOST_WORDS = 2000  # characters of an error's message
CHUNK = 2**20
# transformers' own compiler; in the process that asks, a request to this one takes its place
compiled = lru_cache(32)(chat_template_utils._cached_compile_jinja_template)


def main(descriptor: int) -> None:
    """Answer requests until the connection is closed: a line with the time limit in seconds, and one of JSON."""
    child: Child | None = None
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        stream.write(b"ready\n")
        stream.flush()
        while seconds := stream.readline():
            child = child or Child(descriptor)
            reply = child.reply(stream.readline(), float(seconds))
            if reply.startswith((b'["TooSlowError"', b'["MemoryError"')):  # memory may be in pieces
                child.end()
                child = None
            stream.write(reply)
            stream.flush()


class Child:
    """The process that renders. It has no connection but the one to this process."""

    def __init__(self, other: int) -> None:
        self._socket, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(other)
            self._socket.close()
            serve(theirs)
        theirs.close()

    def reply(self, request: bytes, seconds: float) -> bytes:
        """Return the line that answers a request; one that is not answered in time is an error too."""
        self._socket.settimeout(seconds)
        reply = bytearray()
        try:
            self._socket.sendall(request)
            while not reply.endswith(b"\n"):
                chunk = self._socket.recv(CHUNK)
                if not chunk:
                    return line(["MemoryError", "the process that rendered it was killed", None])
                reply += chunk
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            return line(["TooSlowError", f"it was still at work after {seconds:g} s", None])
        return bytes(reply)

    def end(self) -> None:
        """Kill the process."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._socket.close()


def serve(connection: socket.socket) -> None:
    """Render what is asked for, in the child, to the end of the connection."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MB << 20, MEMORY_MB << 20))
    try:
        with connection.makefile("rb") as requests:
            for request in requests:
                connection.sendall(line(answer(*json.loads(request))))
    finally:
        os._exit(0)


def line(message: list[object]) -> bytes:
    return json.dumps(message, default=str).encode() + b"\n"


def render(template: str, variables: dict[str, Any] | None) -> str:
    """Render a chat template, or only compile it."""
    made = compiled(template)
    text = "" if variables is None else made.render(**variables)
    if len(text) > MOST_TEXT:
        raise ValueError(f"it renders {len(text):,} characters; at most {MOST_TEXT:,} are read")
    return text


def parse(template: dict[str, Any], text: str, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Parse a turn by a response template, a table whose regular expressions are searched for in the text."""
    message = parse_response(text, template, prefix="", tools=tools)  # type: ignore[arg-type]  # it changes none
    if len(json.dumps(message, default=str)) > MOST_TEXT:
        raise ValueError(f"it makes more than {MOST_TEXT:,} characters of a turn")
    return dict(message)


WORK: dict[str, Callable[..., object]] = {"render": render, "parse": parse}


def answer(work: str, *asked: Any) -> list[object]:
    """Do what is asked for → ``[result]``, or ``[kind of error, message, line]``."""
    try:
        result = WORK[work](*asked)
    except MemoryError:
        return ["MemoryError", f"it takes more than {MEMORY_MB:,} MB", None]
    except Exception as error:  # noqa: BLE001  a stranger's template
        message = getattr(error, "message", None) or (error.args[0] if error.args else "")
        return [type(error).__name__, f"{message}"[:MOST_WORDS], getattr(error, "lineno", None)]
    return [result]
