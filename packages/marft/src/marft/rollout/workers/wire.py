"""How messages travel between two processes: in order, many together."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

HEADER = struct.Struct(">Q")  # the length of what follows
BUFFER = 2**20  # bytes that are read ahead


class Wire:
    """One end of a connection.

    What is sent in one pass of the event loop is one frame, which the other side heeds in one pass: so answers that
    came together are heard together, as they would be in one process. A frame is a pickled list of messages, in which
    arrays are the bytes that they are; nobody but the two processes can write into the connection.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waiting: list[object] = []

    @staticmethod
    async def over(connection: socket.socket) -> Wire:
        return Wire(*await asyncio.open_connection(sock=connection, limit=BUFFER))

    def send(self, message: object) -> None:
        """Have a message sent with all others of this pass. After the other side has gone, nothing is."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append(message)

    def flush(self) -> None:
        """Send what waits."""
        messages, self._waiting = self._waiting, []
        if messages and not self._writer.is_closing():
            frame = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
            self._writer.write(HEADER.pack(len(frame)))
            self._writer.write(frame)

    async def receive(self) -> Sequence[Any]:
        """The next frame.

        Raises:
            EOFError: the other side has gone.
        """
        try:
            (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            frame = await self._reader.readexactly(length)
        except OSError as error:
            raise EOFError from error
        messages: Sequence[object] = pickle.loads(frame)
        return messages

    async def drained(self) -> None:
        """Until what was sent has left this process, or nobody is there to take it."""
        self.flush()
        try:
            await self._writer.drain()
        except OSError:
            return

    def close(self) -> None:
        self._writer.close()
