"""Connections between a run and its child processes: the same frames over asyncio, or with blocking calls.

Engines on another Python import this module: it needs only NumPy.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from marft.common.processes.messages import (
    LENGTHS,
    FrameEncoder,
    by_name,
    check_lengths,
    decode_frame,
    decode_messages,
)

BUFFER_BYTES = 2**20  # read-ahead buffer, and maximum size of one read, in bytes
MAX_STATE_BYTES = 2**40  # maximum size of a frame with weights and optimizer state, in bytes
MAX_SECONDS = 10**6  # maximum timeout that operating systems accept


class AsyncConnection:
    """One end of a connection, on an event loop.

    All messages sent in one pass of the event loop form one frame, and the receiver gets them together.

    Args:
        kinds: messages accepted from the other end.
        values: classes of nested values, in both directions.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        kinds: Sequence[type],
        values: Sequence[type] = (),
    ) -> None:
        self._reader, self._writer = reader, writer
        self._kinds, self._values = by_name(kinds), by_name(values)
        self._encoder = FrameEncoder(self._values)
        self._received: deque[Any] = deque()

    @staticmethod
    async def from_socket(
        connection: socket.socket, kinds: Sequence[type], values: Sequence[type] = ()
    ) -> AsyncConnection:
        """Open a connection over a connected socket."""
        return AsyncConnection(*await asyncio.open_connection(sock=connection, limit=BUFFER_BYTES), kinds, values)

    def send(self, message: object) -> None:
        """Queue a message for the current pass of the event loop. A closed connection drops the message.

        Raises:
            MessageError: a value in the message cannot be sent.
        """
        if not self._encoder.count:
            asyncio.get_running_loop().call_soon(self._flush)
        self._encoder.add(message)

    def _flush(self) -> None:
        """Send the queued messages."""
        if self._encoder.count:
            frame = self._encoder.take_frame()
            if not self._writer.is_closing():
                self._writer.write(frame)

    async def receive_together(self) -> Sequence[Any]:
        """Return the next messages, as many as were sent together.

        Raises:
            EOFError: the other end has closed.
            MessageError: the received frame is not valid.
        """
        try:
            length, size = LENGTHS.unpack(await self._reader.readexactly(LENGTHS.size))
            check_lengths(length, size)
            body = await self._reader.readexactly(length)
        except OSError as error:
            raise EOFError from error
        return decode_messages(body, size, self._kinds, self._values)

    async def receive(self) -> Any:
        """Return the next message; raises the errors of :meth:`receive_together`."""
        while not self._received:
            self._received.extend(await self.receive_together())
        return self._received.popleft()

    async def drain(self) -> None:
        """Wait until the queued messages are written, or the connection is closed."""
        self._flush()
        try:
            await self._writer.drain()
        except OSError:
            return

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class BlockingConnection:
    """One end of a connection, with blocking calls.

    Args:
        end: socket of this process.
        kinds: messages accepted from the other end.
        values: classes of nested values, in both directions.
        timeout_seconds: timeout in seconds for the other end to accept sent data; 0 waits forever.
    """

    def __init__(
        self, end: socket.socket, kinds: Sequence[type], values: Sequence[type] = (), timeout_seconds: float = 0.0
    ) -> None:
        seconds = int(min(timeout_seconds, MAX_SECONDS))
        microseconds = int((min(timeout_seconds, MAX_SECONDS) - seconds) * 1e6)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", seconds, microseconds))
        self._socket, self._kinds, self._values = end, by_name(kinds), by_name(values)
        self._frame = bytearray()  # received part of the next frame

    def send(self, message: object) -> None:
        """Send a message. A failure closes this direction; messages from the other end can still be received.

        Raises:
            OSError: the other end has closed, or did not accept the data in time.
            MessageError: a value in the message cannot be sent.
        """
        encoder = FrameEncoder(self._values)
        encoder.add(message)
        try:
            self._socket.sendall(encoder.take_frame())
        except BaseException:  # the other end may have half a frame
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            raise

    def receive(self, seconds: float | None = None) -> Any:
        """Wait for the next message. After a timeout, the next call continues a frame that has partly arrived.

        Args:
            seconds: timeout for the whole message; None waits forever.

        Raises:
            EOFError: the other end has closed, and no message is left.
            TimeoutError: no message arrived in time.
            MessageError: the received frame is not valid.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        self._read(LENGTHS.size, deadline)
        length, size = LENGTHS.unpack_from(self._frame)
        check_lengths(length, size, MAX_STATE_BYTES)
        self._read(LENGTHS.size + length, deadline)
        body, self._frame = self._frame, bytearray()
        del body[: LENGTHS.size]
        return decode_frame(body, size, self._kinds, self._values)

    def _read(self, size: int, deadline: float | None) -> None:
        """Read until this many bytes of the frame have arrived."""
        while (rest := size - len(self._frame)) > 0:
            if deadline is not None and not wait([self._socket], max(deadline - time.monotonic(), 0.0)):
                raise TimeoutError
            try:
                data = self._socket.recv(min(rest, BUFFER_BYTES))
            except OSError as error:  # the other end may have closed in the middle of a message
                raise EOFError from error
            if not data:
                raise EOFError
            self._frame += data

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
