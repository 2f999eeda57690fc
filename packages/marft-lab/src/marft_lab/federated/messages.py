"""Messages between a federation's coordinator and its sites, as frames over a socket."""

from __future__ import annotations

import hashlib
import math
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from marft.common.errors import UserError
from marft.common.processes.messages import LENGTHS, MAX_FRAME_BYTES, decode_frame, encode_frame

Numbers = npt.NDArray[Any]
Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """First message to a site: its assignment, without data of other sites."""

    site: Mapping[str, Any]  # name, folder, recipe, changes
    # id, seed, training steps of all rounds together, clip, noise, and True under counts to request counts
    federation: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class TrainRequest:
    """Request to a site: train from the given adapters for ``steps`` steps.

    Without files, the request asks for the initial adapters.
    """

    round: int
    steps: int  # 0 only puts the adapters in place
    files: Mapping[str, object]  # file sizes by name, in the order of data
    data: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """A site's reply with its adapters."""

    round: int
    report: Mapping[str, Any]  # requested counts, digests of the base models, and norm of the change
    files: Mapping[str, object]
    data: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class TrainFailure:
    """A site's reply after a failure.

    The reason is only in the site's own log, because an error message may quote a task.
    """

    round: int


MESSAGE_TYPES: dict[str, type] = {kind.__name__: kind for kind in (Assignment, TrainRequest, Update, TrainFailure)}


def pack_files(files: Files) -> tuple[dict[str, int], Numbers]:
    """Return the sizes by name, and the concatenated bytes, shape [bytes]."""
    return {name: len(data) for name, data in files.items()}, np.array(bytearray(b"".join(files.values())), np.uint8)


def unpack_files(message: TrainRequest | Update) -> dict[str, bytes]:
    """Return a message's files.

    Raises:
        UserError: the sizes do not match the received data.
    """
    files, offset, data = dict[str, bytes](), 0, message.data.tobytes()
    for name, size in message.files.items():
        if not isinstance(size, int) or size < 0:
            raise UserError(f"a file of {size!r} bytes")
        files[name] = data[offset : offset + size]
        offset += size
    if offset != len(data):
        raise UserError(f"files of {offset} bytes in {len(data)}")
    return files


def sha256_digest(data: bytes) -> str:
    """Return the SHA-256 digest of data, as hexadecimal text."""
    return hashlib.sha256(data).hexdigest()


def send(connection: socket.socket, message: object) -> None:
    """Send a message.

    Raises:
        OSError: the connection is closed.
    """
    connection.sendall(encode_frame(message))


def receive(connection: socket.socket) -> Any:
    """Receive the next message.

    Raises:
        EOFError: the connection is closed.
        UserError: invalid message.
    """
    length, size = LENGTHS.unpack(_receive_exactly(connection, LENGTHS.size))
    if not size <= length <= MAX_FRAME_BYTES:
        raise UserError(f"no message of a federation: {length} bytes")
    return decode_frame(_receive_exactly(connection, length), size, MESSAGE_TYPES)


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    buffer = bytearray()
    while len(buffer) < size:
        try:
            chunk = connection.recv(min(size - len(buffer), 2**20))
        except OSError as error:
            raise EOFError from error
        if not chunk:
            raise EOFError
        buffer += chunk
    return bytes(buffer)


def is_finite(number: object) -> bool:
    """Return True for a finite number in the range of float.

    >>> is_finite(1.5), is_finite(True), is_finite(10**400), is_finite("2")
    (True, False, False, False)
    """
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    try:
        return math.isfinite(number)
    except OverflowError:
        return False
