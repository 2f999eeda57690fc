"""Transports to an MCP server (stdio for started servers, and HTTP), with limits on its traffic."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from marft.common.errors import UserError
from marft.common.texts import format_error, single_line
from marft.common.types import Tool

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from httpx2 import AsyncClient, Request, Response, Timeout
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

MAX_MESSAGE_BYTES = 8 << 20  # maximum size of one message
MAX_RESPONSE_BYTES = 32 << 20  # maximum size of all data after our last request
MAX_RESPONSE_LINES = 10_000
MAX_TOOLS = 1_000  # maximum tools in a server's list
MAX_PAGES = 100  # maximum pages of the list
MAX_NAME_CHARACTERS = 200
MAX_DESCRIPTION_CHARS = 16_384
MAX_SCHEMA_CHARACTERS = 65_536  # maximum JSON size of a tool's argument schema
MAX_TOTAL_CHARACTERS = 1 << 20  # maximum total size of all tools that agents get from a server
MAX_QUOTED_CHARACTERS = 120  # characters quoted in messages
GRACE_SECONDS = 1.0  # time for a server to end after its input ends, and again after SIGTERM
POLL_SECONDS = 0.01
CHUNK = 65536


class LimitExceededError(UserError):
    """MCP server exceeded a limit."""


class ServerTraffic:
    """Traffic counter for one server. ``fault`` describes the exceeded limit; afterwards, no more data is read."""

    def __init__(self) -> None:
        self.fault = ""
        self._lines = self._bytes = self._invalid_lines = 0
        self._last_invalid = ""
        self._logged = _library_log.count

    def reset(self) -> None:
        """Reset the counters at our request: the following data may be its response."""
        self._lines = self._bytes = 0

    def count(self, size: int, lines: int = 0) -> None:
        """Count received data.

        Raises:
            LimitExceededError: the server sent too much after a single request.
        """
        self._bytes += size
        self._lines += lines
        if self._bytes > MAX_RESPONSE_BYTES or self._lines > MAX_RESPONSE_LINES:
            raise self.record_fault(
                f"it sent more than {MAX_RESPONSE_LINES:,} lines or {MAX_RESPONSE_BYTES >> 20} MiB after a single "
                "request"
            )

    def add_invalid_line(self, line: bytes) -> None:
        """Store a line outside the protocol."""
        self._invalid_lines += 1
        self._last_invalid = line[:MAX_QUOTED_CHARACTERS].decode("utf-8", "replace")

    def record_fault(self, fault: str) -> LimitExceededError:
        """Store the first fault, and return an error."""
        self.fault = self.fault or fault
        return LimitExceededError(self.describe_faults())

    def message_too_long(self) -> LimitExceededError:
        """Return the error for a message larger than ``MAX_MESSAGE_BYTES``."""
        return self.record_fault(f"it sent a message of more than {MAX_MESSAGE_BYTES >> 20} MiB")

    def describe_faults(self) -> str:
        """Return the fault, invalid lines and the library's last log message, or ""."""
        parts = [self.fault] if self.fault else []
        if self._invalid_lines:
            parts.append(
                f"{self._invalid_lines:,} of its lines on standard output are no messages of the protocol, the last "
                f"{single_line(self._last_invalid)!r}; only messages belong there, all else on standard error"
            )
        elif _library_log.count > self._logged:
            parts.append(f"the mcp package says: {_library_log.last}")
        return "; ".join(parts)


class _LogHandler(logging.Handler):
    """Log handler for the ``mcp`` package: counts messages and stores the last, instead of printing."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count, self.last = 0, ""

    def emit(self, record: logging.LogRecord) -> None:
        """Count and store a message."""
        error = record.exc_info[1] if record.exc_info else None
        message = (
            f"{record.getMessage()[:MAX_QUOTED_CHARACTERS]}: {format_error(error)[:MAX_QUOTED_CHARACTERS]}"
            if error
            else record.getMessage()[:MAX_QUOTED_CHARACTERS]
        )
        self.count, self.last = self.count + 1, single_line(message)


_library_log = _LogHandler()


def redirect_library_log() -> None:
    """Redirect the ``mcp`` package's log away from the terminal."""
    import mcp

    logger, folder = logging.getLogger("mcp"), str(Path(mcp.__file__).parent)

    def keep_foreign(record: logging.LogRecord) -> bool:
        """Return false for messages from the package's files."""
        if not record.pathname.startswith(folder):
            return True
        _library_log.handle(record)
        return False

    if _library_log not in logger.handlers:
        logger.addHandler(_library_log)
        logger.propagate = False
        # the package's sessions use this logger name, as other packages may
        logging.getLogger("client").addFilter(keep_foreign)


def check_tool_count(tools: int, pages: int) -> None:
    """Check the length of a server's tool list.

    Raises:
        LimitExceededError: the list has too many tools or pages.
    """
    if tools > MAX_TOOLS or pages > MAX_PAGES:
        raise LimitExceededError(
            f"it lists more than {MAX_TOOLS:,} tools or {MAX_PAGES} pages of them; "
            "use a server that offers fewer, or start it so that it does"
        )


def check_tool_sizes(tools: Sequence[Tool], server: str) -> None:
    """Check the sizes of an agent's tools.

    Raises:
        UserError: a tool, or all tools together, exceed a size limit. The message names the tool and a remedy.
    """
    total = 0
    for tool in tools:
        sizes = {
            "name": (len(tool.name), MAX_NAME_CHARACTERS),
            "description": (len(tool.description), MAX_DESCRIPTION_CHARS),
            "schema of arguments": (len(json.dumps(tool.parameters)), MAX_SCHEMA_CHARACTERS),
        }
        for part, (size, max_size) in sizes.items():
            if size > max_size:
                raise UserError(
                    f"{server}: the {part} of its tool {single_line(tool.name[:MAX_QUOTED_CHARACTERS])!r} has {size:,} "
                    f"characters, more than {max_size:,}; name in only the tools that agents need, without this one"
                )
        total += sum(size for size, _ in sizes.values())
    if total > MAX_TOTAL_CHARACTERS:
        raise UserError(
            f"{server}: its {len(tools):,} tools have {total:,} characters, more than {MAX_TOTAL_CHARACTERS:,}; "
            "name in only those that agents need"
        )


@asynccontextmanager
async def standard_streams(
    command: Sequence[str], environment: Mapping[str, str], folder: str | None, errors: IO[str], limiter: ServerTraffic
) -> AsyncIterator[TransportStreams]:
    """Start a server in a session of its own and exchange messages by lines; end the server on exit.

    The ``mcp`` package's own transport accepts lines of any length and needs quadratic time for long lines.
    """
    import anyio
    from mcp.shared.message import SessionMessage

    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment,
        cwd=folder,
        stderr=errors,
        start_new_session=True,
        limit=MAX_MESSAGE_BYTES,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    receive_queue, receive_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    send_stream, send_queue = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.create_task(_forward_output(process, receive_queue, limiter)),
        asyncio.create_task(_forward_input(process, send_queue, receive_queue, limiter)),
    ]
    try:
        yield receive_stream, send_stream
    finally:
        with anyio.CancelScope(shield=True):
            for stream in (receive_stream, send_stream):
                stream.close()
            await asyncio.shield(asyncio.create_task(_terminate(process, tasks)))
            for end in (receive_queue, send_queue):
                end.close()


async def _forward_output(
    process: asyncio.subprocess.Process,
    receive_queue: MemoryObjectSendStream[SessionMessage | Exception],
    limiter: ServerTraffic,
) -> None:
    """Forward the server's messages, up to the first that exceeds a limit."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCNotification, jsonrpc_message_adapter

    assert process.stdout is not None
    with suppress(LimitExceededError, anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
        async with receive_queue:
            while line := await _read_line(process.stdout, limiter):
                limiter.count(len(line), lines=1)
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    limiter.add_invalid_line(line)
                else:
                    if not isinstance(message, JSONRPCNotification):  # no code here depends on notifications
                        await receive_queue.send(SessionMessage(message))


async def _read_line(output: asyncio.StreamReader, limiter: ServerTraffic) -> bytes:
    """Return the next line, or ``b""`` at the end.

    Raises:
        LimitExceededError: the line is too long.
    """
    try:
        return await output.readline()
    except ValueError:
        raise limiter.message_too_long() from None


async def _forward_input(
    process: asyncio.subprocess.Process,
    send_queue: MemoryObjectReceiveStream[SessionMessage],
    receive_queue: MemoryObjectSendStream[SessionMessage | Exception],
    limiter: ServerTraffic,
) -> None:
    """Forward our messages. Once the server stops accepting input, close its output stream too."""
    from mcp_types import JSONRPCRequest

    assert process.stdin is not None
    with suppress(ConnectionError):
        async for sent in send_queue:
            if isinstance(sent.message, JSONRPCRequest):
                limiter.reset()
            process.stdin.write(json.dumps(sent.message.model_dump(by_alias=True, exclude_unset=True)).encode() + b"\n")
            await process.stdin.drain()
        return
    receive_queue.close()


async def _terminate(process: asyncio.subprocess.Process, tasks: Sequence[asyncio.Task[None]]) -> None:
    """Close the server's input, then send SIGTERM, then SIGKILL, to its whole session."""
    assert process.stdin is not None
    assert process.stdout is not None
    await asyncio.wait(tasks, timeout=0.1)  # lets pending messages be written
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    process.stdin.close()
    draining = asyncio.create_task(_drain(process.stdout))
    for number in (signal.SIGTERM, signal.SIGKILL, None):
        until = asyncio.get_running_loop().time() + GRACE_SECONDS + (0.5 if number == signal.SIGKILL else 0.0)
        while process.returncode is None and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_SECONDS)
        if process.returncode is not None or number is None:
            break
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
    draining.cancel()
    process._transport.close()  # type: ignore[attr-defined]  # also where something else holds its output open


async def _drain(output: asyncio.StreamReader) -> None:
    """Read the output to its end: a blocked server would not notice the end of its input."""
    with suppress(ConnectionError):
        while await output.read(CHUNK):
            pass


def bounded_client(headers: Mapping[str, str], timeout: Timeout, limiter: ServerTraffic) -> AsyncClient:
    """Return an HTTP client with limits on received data."""
    from httpx2 import AsyncByteStream, AsyncClient, StreamError

    class CountedStream(AsyncByteStream):
        """Response stream that counts its data."""

        def __init__(self, inner: AsyncByteStream, is_event_stream: bool) -> None:
            self.inner, self.streamed = inner, is_event_stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self.inner:
                size += len(chunk)
                try:
                    if (
                        size > MAX_MESSAGE_BYTES and not self.streamed
                    ):  # in an event stream, each event has its own limit
                        raise limiter.message_too_long()
                    limiter.count(len(chunk), chunk.count(b"\n") if self.streamed else 0)
                except LimitExceededError as error:
                    raise StreamError(str(error)) from None
                yield chunk

        async def aclose(self) -> None:
            """Close the response stream."""
            await self.inner.aclose()

    async def on_request(request: Request) -> None:
        """Count a request; fail after a fault."""
        if limiter.fault:
            raise StreamError(limiter.fault)
        if request.method == "POST":
            limiter.reset()

    async def on_response(response: Response) -> None:
        """Check a response's encoding and count its data."""
        encoding = response.headers.get("content-encoding", "identity")
        if encoding != "identity":  # compressed data can expand without limit
            raise StreamError(str(limiter.record_fault(f"it compresses ({encoding[:20]}) what it was asked not to")))
        is_event_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        assert isinstance(response.stream, AsyncByteStream)
        response.stream = CountedStream(response.stream, is_event_stream)

    return AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=timeout,
        event_hooks={"request": [on_request], "response": [on_response]},
    )
