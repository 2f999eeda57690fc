"""What a federation's coordinator and its sites send each other, and nothing else does: frames over a socket."""

from __future__ import annotations

import hashlib
import math
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from marft.inference.apart.frames import LARGEST, LENGTHS, packed, unpacked

Numbers = npt.NDArray[Any]
Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True, eq=False)
class About:
    """To a site, first: what it is. Nothing in it is another site's."""

    site: Mapping[str, Any]  # name, folder, recipe, changes
    federation: Mapping[str, Any]  # id, seed, steps of all rounds together, clip, noise, are counts asked for


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """To a site: learn on from these adapters for so many steps. Without files: send those that you begin with."""

    round: int
    steps: int  # 0: put them in place, and learn nothing
    files: Mapping[str, Any]  # their sizes by name, in the order of data
    data: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """From a site: the adapters that it has come to."""

    round: int
    about: Mapping[str, Any]  # counts, where they are asked for; digests of its base models; the change's norm
    files: Mapping[str, Any]
    data: Numbers


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """From a site: it cannot. Why is in its own log: the words of an error may hold a task's."""

    round: int


KINDS: dict[str, type] = {kind.__name__: kind for kind in (About, Asked, Update, Failed)}


def data_of(files: Files) -> tuple[dict[str, int], Numbers]:
    """Files as a frame holds them."""
    return {name: len(data) for name, data in files.items()}, np.array(bytearray(b"".join(files.values())), np.uint8)


def files_of(message: Asked | Update) -> dict[str, bytes]:
    """The files of a message.

    Raises:
        ValueError: their sizes are not those of what came.
    """
    found, at, data = dict[str, bytes](), 0, message.data.tobytes()
    for name, size in message.files.items():
        if not isinstance(size, int) or size < 0:
            raise ValueError(f"a file of {size!r} bytes")
        found[name] = data[at : at + size]
        at += size
    if at != len(data):
        raise ValueError(f"files of {at} bytes in {len(data)}")
    return found


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def send(end: socket.socket, message: object) -> None:
    """
    Raises:
        OSError: the other end has gone.
    """
    end.sendall(packed(message))


def receive(end: socket.socket) -> Any:
    """The next message.

    Raises:
        EOFError: the other end has gone.
        ValueError: what came is none.
    """
    length, size = LENGTHS.unpack(_exactly(end, LENGTHS.size))
    if not size <= length <= LARGEST:
        raise ValueError(f"no message of a federation: {length} bytes")
    return unpacked(_exactly(end, length), size, KINDS)


def _exactly(end: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        try:
            piece = end.recv(min(size - len(found), 2**20))
        except OSError as error:
            raise EOFError from error
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)


def is_finite(number: object) -> bool:
    """Whether it is a number that a float holds.

    >>> is_finite(1.5), is_finite(True), is_finite(10**400), is_finite("2")
    (True, False, False, False)
    """
    if isinstance(number, bool) or not isinstance(number, int | float):
        return False
    try:
        return math.isfinite(number)
    except OverflowError:
        return False
