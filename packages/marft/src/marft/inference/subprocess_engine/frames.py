"""Framing for messages between a run and a subprocess engine: JSON and plain arrays.

A frame consists of the body length (8 bytes), the header length (4 bytes), the JSON header, and the arrays' bytes in
order. The body length counts header and arrays. Both sides need only the standard library and numpy.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
import struct
from dataclasses import fields
from typing import Any

import numpy as np

LENGTHS = struct.Struct(">QI")
BUFFER_BYTES = 2**20  # read-ahead buffer, in bytes
MAX_FRAME_BYTES = 2**32  # maximum size of a frame, in bytes
ARRAY_DTYPES = re.compile(r"[<|][biuf]\d{1,2}")  # array data types, in numpy notation
FIELD_TYPES: dict[str, type | tuple[type, ...]] = {
    "int": int, "float": (int, float), "str": str, "bool": bool, "list[int]": list, "list[str]": list,
    "Mapping[str, Any]": dict, "Ids": np.ndarray, "Numbers": np.ndarray,
}  # fmt: skip


def encode_frame(message: object) -> bytes:
    """Encode a dataclass with plain values and arrays as a frame."""
    values = {field.name: getattr(message, field.name) for field in fields(message)}  # type: ignore[arg-type]
    arrays = {name: np.ascontiguousarray(item) for name, item in values.items() if isinstance(item, np.ndarray)}
    plain = {name: item for name, item in values.items() if name not in arrays}
    shapes = {name: [item.dtype.str, item.shape] for name, item in arrays.items()}
    head = json.dumps([type(message).__name__, plain, shapes]).encode()
    body = b"".join([head, *(item.tobytes() for item in arrays.values())])
    return LENGTHS.pack(len(body), len(head)) + body


def decode_frame(body: bytes, size: int, kinds: dict[str, type]) -> Any:
    """Decode a frame's body.

    Args:
        size: size of the header, in bytes.
        kinds: accepted dataclasses, by name.

    Raises:
        ValueError: the body is not an accepted message.
    """
    try:
        kind, plain, shapes = json.loads(body[:size])
        offset, arrays = size, {}
        for name, (dtype, shape) in shapes.items():
            count = math.prod(shape)
            if not ARRAY_DTYPES.fullmatch(dtype):
                raise ValueError(f"numbers of the type {dtype!r:.40}")
            arrays[name] = np.frombuffer(body, np.dtype(dtype), count, offset).reshape(shape)
            offset += arrays[name].nbytes
        if offset != len(body):
            raise ValueError(f"{len(body) - offset} bytes too many")
        message = kinds[kind](**plain, **arrays)
        for field in fields(message):
            if not isinstance(getattr(message, field.name), FIELD_TYPES.get(str(field.type), object)):
                raise TypeError(f"{kind}.{field.name}")
        return message
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"no message that an engine and its run send each other: {error!r:.200}") from error


class Connection:
    """Connection between a run and an engine: one end.

    Args:
        kinds: message types accepted from the other end.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kinds: tuple[type, ...]) -> None:
        self._reader, self._writer = reader, writer
        self._kinds = {kind.__name__: kind for kind in kinds}

    @staticmethod
    async def from_socket(connection: socket.socket, kinds: tuple[type, ...]) -> Connection:
        """Open a connection over a socket."""
        return Connection(*await asyncio.open_connection(sock=connection, limit=BUFFER_BYTES), kinds)

    def send(self, message: object) -> None:
        """Send a message; a closed connection drops the message."""
        if not self._writer.is_closing():
            self._writer.write(encode_frame(message))

    async def receive(self) -> Any:
        """Return the next message.

        Raises:
            EOFError: the other end has closed.
            ValueError: the received frame is not a valid message.
        """
        try:
            length, size = LENGTHS.unpack(await self._reader.readexactly(LENGTHS.size))
            if not size <= length <= MAX_FRAME_BYTES:
                raise ValueError(f"no message that an engine and its run send each other: {length} bytes")
            body = await self._reader.readexactly(length)
        except OSError as error:
            raise EOFError from error
        return decode_frame(body, size, self._kinds)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()
