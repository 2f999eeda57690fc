"""Worker program that renders chat templates and parses turns with response templates.

A child process does the work, so a template can be killed at any point.
"""

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

MEMORY_MB = 1024  # memory limit of the child in MB; the child alone takes about 200 MB
MOST_TEXT = 16 * 2**20  # maximum characters of a rendered chat
MOST_WORDS = 2000  # maximum characters of an error message
CHUNK = 2**20
# transformers' own compiler; in the requesting process, requests to this worker replace it
compiled = lru_cache(32)(chat_template_utils._cached_compile_jinja_template)


def main(descriptor: int) -> None:
    """Answer requests until the connection closes.

    A request is a line with the timeout in seconds and a line of JSON.
    """
    child: Child | None = None
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        stream.write(b"ready\n")
        stream.flush()
        while seconds := stream.readline():
            child = child or Child(descriptor)
            reply = child.reply(stream.readline(), float(seconds))
            if reply.startswith((b'["TooSlowError"', b'["MemoryError"')):  # the child's memory may be fragmented
                child.end()
                child = None
            stream.write(reply)
            stream.flush()


class Child:
    """Child process for rendering. Its only connection leads to this process."""

    def __init__(self, other: int) -> None:
        self._socket, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(other)
            self._socket.close()
            serve(theirs)
        theirs.close()

    def reply(self, request: bytes, seconds: float) -> bytes:
        """Return the response line for a request; a timeout gives an error response."""
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
        """Kill the child process."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._socket.close()


def serve(connection: socket.socket) -> None:
    """Handle requests in the child until the connection closes, then exit."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MB << 20, MEMORY_MB << 20))
    try:
        with connection.makefile("rb") as requests:
            for request in requests:
                connection.sendall(line(answer(*json.loads(request))))
    finally:
        os._exit(0)


def line(message: list[object]) -> bytes:
    """Encode a message to a JSON line."""
    return json.dumps(message, default=str).encode() + b"\n"


def render(template: str, variables: dict[str, Any] | None) -> str:
    """Render a chat template; without variables, only compile the template.

    Raises:
        ValueError: the text is too long.
    """
    made = compiled(template)
    text = "" if variables is None else made.render(**variables)
    if len(text) > MOST_TEXT:
        raise ValueError(f"it renders {len(text):,} characters; at most {MOST_TEXT:,} are read")
    return text


def parse(template: dict[str, Any], text: str, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Parse a turn with a response template, a table with regular expressions for the text.

    Raises:
        ValueError: the parsed message is too long.
    """
    # the function does not modify its arguments
    message = parse_response(text, template, prefix="", tools=tools)  # type: ignore[arg-type]
    if len(json.dumps(message, default=str)) > MOST_TEXT:
        raise ValueError(f"it makes more than {MOST_TEXT:,} characters of a turn")
    return dict(message)


WORK: dict[str, Callable[..., object]] = {"render": render, "parse": parse}


def answer(work: str, *asked: Any) -> list[object]:
    """Handle a request; return ``[result]``, or ``[error type, message, line]``."""
    try:
        result = WORK[work](*asked)
    except MemoryError:
        return ["MemoryError", f"it takes more than {MEMORY_MB:,} MB", None]
    except Exception as error:  # noqa: BLE001  third-party templates can raise any error
        message = getattr(error, "message", None) or (error.args[0] if error.args else "")
        return [type(error).__name__, f"{message}"[:MOST_WORDS], getattr(error, "lineno", None)]
    return [result]
