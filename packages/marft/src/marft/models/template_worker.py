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

from transformers.utils import chat_template_utils
from transformers.utils.chat_parsing import parse_response

MEMORY_MB = 1024  # memory limit of the child in MB; the child alone takes about 200 MB
MAX_TEXT_LENGTH = 16 * 2**20  # maximum characters of a rendered chat
MAX_ERROR_LENGTH = 2000  # maximum characters of an error message
CHUNK_BYTES = 2**20
# transformers' own compiler; in the requesting process, requests to this worker replace it
compile_template = lru_cache(32)(chat_template_utils._cached_compile_jinja_template)


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

    def __init__(self, parent_descriptor: int) -> None:
        self._socket, child_socket = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(parent_descriptor)
            self._socket.close()
            serve(child_socket)
        child_socket.close()

    def reply(self, request: bytes, seconds: float) -> bytes:
        """Return the response line for a request; a timeout gives an error response."""
        self._socket.settimeout(seconds)
        reply = bytearray()
        try:
            self._socket.sendall(request)
            while not reply.endswith(b"\n"):
                chunk = self._socket.recv(CHUNK_BYTES)
                if not chunk:
                    return encode_line(["MemoryError", "the process that rendered it was killed", None])
                reply += chunk
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            return encode_line(["TooSlowError", f"it was still at work after {seconds:g} s", None])
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
                connection.sendall(encode_line(handle_request(*json.loads(request))))
    finally:
        os._exit(0)


def encode_line(message: list[object]) -> bytes:
    """Encode a message to a JSON line."""
    return json.dumps(message, default=str).encode() + b"\n"


def render(template: str, variables: dict[str, object] | None) -> str:
    """Render a chat template; without variables, only compile the template.

    Raises:
        ValueError: the text is too long.
    """
    compiled_template = compile_template(template)
    text = "" if variables is None else compiled_template.render(**variables)
    if len(text) > MAX_TEXT_LENGTH:
        raise ValueError(f"it renders {len(text):,} characters; at most {MAX_TEXT_LENGTH:,} are read")
    return text


def parse(template: dict[str, object], text: str, tools: list[dict[str, object]] | None) -> dict[str, object]:
    """Parse a turn with a response template, a table with regular expressions for the text.

    Raises:
        ValueError: the parsed message is too long.
    """
    # the function does not modify its arguments
    message = parse_response(text, template, prefix="", tools=tools)  # type: ignore[arg-type]
    if len(json.dumps(message, default=str)) > MAX_TEXT_LENGTH:
        raise ValueError(f"it makes more than {MAX_TEXT_LENGTH:,} characters of a turn")
    return dict(message)


FUNCTIONS: dict[str, Callable[..., object]] = {"render": render, "parse": parse}


def handle_request(name: str, *arguments: object) -> list[object]:
    """Handle a request; return ``[result]``, or ``[error type, message, line]``."""
    try:
        result = FUNCTIONS[name](*arguments)
    except MemoryError:
        return ["MemoryError", f"it takes more than {MEMORY_MB:,} MB", None]
    except Exception as error:  # noqa: BLE001  third-party templates can raise any error
        message = getattr(error, "message", None) or (error.args[0] if error.args else "")
        return [type(error).__name__, f"{message}"[:MAX_ERROR_LENGTH], getattr(error, "lineno", None)]
    return [result]
