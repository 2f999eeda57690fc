"""How messages travel between a run and an engine apart from it: JSON and plain arrays, no library's objects.

A frame is the length of what follows (8 bytes), the length of its head (4 bytes), the head as JSON, and the arrays'
bytes one after the other. Both ends read it with the standard library and numpy, whatever else is installed there.
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
BUFFER = 2**20  # bytes that are read ahead
LARGEST = 2**32  # bytes of a frame
NUMBERS = re.compile(r"[<|][biuf]\d{1,2}")  # types of arrays, as NumPy writes them
KINDS: dict[str, type | tuple[type, ...]] = {
    "int": int, "float": (int, float), "str": str, "bool": bool, "list[int]": list, "list[str]": list,
    "Mapping[str, Any]": dict, "Ids": np.ndarray, "Numbers": np.ndarray,
}  # fmt: skip


def packed(message: object) -> bytes:
    """A dataclass of plain values and arrays, as a frame."""
    values = {field.name: getattr(message, field.name) for field in fields(message)}  # type: ignore[arg-type]
    arrays = {name: np.ascontiguousarray(each) for name, each in values.items() if isinstance(each, np.ndarray)}
    plain = {name: each for name, each in values.items() if name not in arrays}
    shapes = {name: [each.dtype.str, each.shape] for name, each in arrays.items()}
    head = json.dumps([type(message).__name__, plain, shapes]).encode()
    body = b"".join([head, *(each.tobytes() for each in arrays.values())])
    return LENGTHS.pack(len(body), len(head)) + body


def unpacked(body: bytes, size: int, kinds: dict[str, type]) -> Any:
    """The message of a frame.

    Args:
        size: of its head, in bytes.
        kinds: dataclasses that may come, by name.

    Raises:
        ValueError: it is none of them.
    """
    try:
        kind, plain, shapes = json.loads(body[:size])
        at, arrays = size, {}
        for name, (dtype, shape) in shapes.items():
            count = math.prod(shape)
            if not NUMBERS.fullmatch(dtype):
                raise ValueError(f"numbers of the type {dtype!r:.40}")
            arrays[name] = np.frombuffer(body, np.dtype(dtype), count, at).reshape(shape)
            at += arrays[name].nbytes
        if at != len(body):
            raise ValueError(f"{len(body) - at} bytes too many")
        message = kinds[kind](**plain, **arrays)
        for field in fields(message):
            if not isinstance(getattr(message, field.name), KINDS.get(str(field.type), object)):
                raise TypeError(f"{kind}.{field.name}")
        return message
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"no message that an engine and its run send each other: {error!r:.200}") from error


class Connection:
    """One end of a connection between a run and an engine.

    Args:
        kinds: messages that may come from the other end.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kinds: tuple[type, ...]) -> None:
        self._reader, self._writer = reader, writer
        self._kinds = {kind.__name__: kind for kind in kinds}

    @staticmethod
    async def over(end: socket.socket, kinds: tuple[type, ...]) -> Connection:
        """A connection over a socket."""
        return Connection(*await asyncio.open_connection(sock=end, limit=BUFFER), kinds)

    def send(self, message: object) -> None:
        """Send a message; after the other end has gone, nothing is."""
        if not self._writer.is_closing():
            self._writer.write(packed(message))

    async def receive(self) -> Any:
        """The next message.

        Raises:
            EOFError: the other end has gone.
            ValueError: what came is no message.
        """
        try:
            length, size = LENGTHS.unpack(await self._reader.readexactly(LENGTHS.size))
            if not size <= length <= LARGEST:
                raise ValueError(f"no message that an engine and its run send each other: {length} bytes")
            body = await self._reader.readexactly(length)
        except OSError as error:
            raise EOFError from error
        return unpacked(body, size, self._kinds)

    def close(self) -> None:
        """Let go of it."""
        self._writer.close()
