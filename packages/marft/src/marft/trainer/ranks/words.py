"""What a run and the ranks beside it say to each other. Weights and gradients travel between the ranks themselves."""

from __future__ import annotations

import pickle
import socket
import struct
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from torch import Tensor

from marft.common.errors import RunError
from marft.common.faults import deliberate, described
from marft.common.types import Episode
from marft.trainer.interfaces import Progress

LONGEST_SECONDS = 10**6  # that a system can be asked to wait


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message."""

    run: bytes  # RunSettings, pickled: reading them runs what the recipe names, and may fail
    meeting: str  # where the ranks find each other: a file, or tcp://host:port
    rank: int
    verbosity: int  # of transformers


@dataclass(frozen=True, slots=True)
class Load:
    """Take weights from a checkpoint."""

    path: str
    goes_on: bool  # with the optimizers and all else that a run goes on with


@dataclass(frozen=True, slots=True, eq=False)
class Adopt:
    """Take over what all ranks had before a step."""

    policies: Mapping[str, Mapping[str, Tensor]]
    critic: Mapping[str, Tensor]
    optimizers: Mapping[str, Tensor]
    parts: Mapping[str, float]  # what credit and schedule carry


@dataclass(frozen=True, slots=True, eq=False)
class Learn:
    """Make one training step."""

    episodes: Sequence[Episode]
    progress: Progress
    rates: Mapping[str, float]  # each policy's learning rate, before its schedule


@dataclass(frozen=True, slots=True)
class Tell:
    """Bring together what optimizers remember, for the first rank to save."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked for is done: at first, that models are loaded, then that all have met. ``pid`` is the rank's
    process."""

    pid: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The rank has given up, and ends."""

    said: str
    kind: str  # "value", "run", "fault", or "gone": it could not reach the others
    trace: str

    @staticmethod
    def of(error: Exception) -> Failed:
        trace = "".join(traceback.format_exception(error))
        if isinstance(error, RunError):
            return Failed(str(error), "run", trace)
        if isinstance(error, ValueError) and deliberate(error):
            return Failed(str(error), "value", trace)
        return Failed(described(error), "gone" if of_company(error) else "fault", trace)


class RankFaultError(Exception):
    """What nobody foresaw in another rank, in words, with its traceback there as a note."""


def of_company(error: Exception) -> bool:
    """Whether an error says that others cannot be reached, as far as its words tell: torch has no kind for it."""
    said = str(error)
    return isinstance(error, OSError | EOFError) or (
        isinstance(error, RuntimeError)
        and not isinstance(error, RunError)
        and any(word in said for word in ("gloo", "NCCL", "Connection", "peer", "Socket", "timed out", "Timed out"))
    )


class Line:
    """One end of a connection between two processes of ours, which block on it.

    Args:
        patience: seconds in which the other side must begin to take what is sent, and go on with it; 0: for ever.
    """

    def __init__(self, end: socket.socket, patience: float = 0.0) -> None:
        whole = int(min(patience, LONGEST_SECONDS))
        microseconds = int((min(patience, LONGEST_SECONDS) - whole) * 1e6)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", whole, microseconds))
        self._connection = Connection(end.detach())

    def send(self, message: object) -> None:
        """
        Raises:
            OSError: the other side has gone, or takes nothing.
        """
        self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def receive(self, seconds: float | None = None) -> Any:
        """The next message.

        Args:
            seconds: that are waited for it; None: for ever.

        Raises:
            EOFError: the other side has gone, and nothing of it is left to read.
            TimeoutError: nothing came in time.
        """
        try:
            if seconds is None or self._connection.poll(seconds):
                return pickle.loads(self._connection.recv_bytes())
        except OSError as error:  # it may have gone in the middle of a message
            raise EOFError from error
        raise TimeoutError

    def close(self) -> None:
        self._connection.close()
