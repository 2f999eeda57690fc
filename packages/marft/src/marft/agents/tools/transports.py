"""Transports to an MCP server, with limits on received data: stdio for started servers, and HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import IO, TYPE_CHECKING

from marft.agents.tools.server_traffic import MAX_MESSAGE_BYTES, LimitExceededError, ServerTraffic

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from httpx2 import AsyncClient, Request, Response, Timeout
    from mcp.client._transport import TransportStreams
    from mcp.shared.message import SessionMessage

GRACE_SECONDS = 1.0  # time for a server to end after its input ends, and again after SIGTERM
POLL_SECONDS = 0.01
CHUNK = 65536


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
