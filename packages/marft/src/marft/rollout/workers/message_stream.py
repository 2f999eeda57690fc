"""Message stream between two processes: ordered, batched messages over a socket."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

HEADER = struct.Struct(">Q")  # length of the frame in bytes
BUFFER = 2**20  # read buffer in bytes


class MessageStream:
    """Message stream endpoint.

    All messages sent in one pass of the event loop form one frame. The receiver handles a frame in one pass. Results
    that arrive together are therefore delivered together, as in a single process. A frame is a pickled list of
    messages; arrays are stored as raw bytes. Unpickling is safe because only the two processes can write into the
    connection.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: list[object] = []

    @staticmethod
    async def open(connection: socket.socket) -> MessageStream:
        """Open a stream over a connected socket."""
        return MessageStream(*await asyncio.open_connection(sock=connection, limit=BUFFER))

    def send(self, message: object) -> None:
        """Queue a message for the current pass of the event loop.

        Messages are dropped after the peer closed the connection.
        """
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append(message)

    def flush(self) -> None:
        """Send the queued messages."""
        messages, self._waiting = self._waiting, []
        if messages and not self._writer.is_closing():
            frame = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
            self._writer.write(HEADER.pack(len(frame)))
            self._writer.write(frame)

    async def receive(self) -> Sequence[Any]:
        """Wait for the next frame and return its messages.

        Raises:
            EOFError: the peer closed the connection.
        """
        try:
            (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            frame = await self._reader.readexactly(length)
        except OSError as error:
            raise EOFError from error
        messages: Sequence[object] = pickle.loads(frame)
        return messages

    async def drain(self) -> None:
        """Flush, then wait until the data is written or the connection is closed."""
        self.flush()
        try:
            await self._writer.drain()
        except OSError:
            return

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()
