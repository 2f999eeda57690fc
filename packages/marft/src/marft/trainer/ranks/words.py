"""Messages between the first rank and the other ranks.

Weights and gradients travel directly between the ranks.
"""

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

LONGEST_SECONDS = 10**6  # maximum timeout that operating systems accept


@dataclass(frozen=True, slots=True)
class Begin:
    """First message to a rank."""

    run: bytes  # pickled RunSettings; unpickling runs code of the recipe and may fail
    meeting: str  # rendezvous address: a file, or tcp://host:port
    rank: int
    verbosity: int  # log level of transformers


@dataclass(frozen=True, slots=True)
class Load:
    """Load a checkpoint."""

    path: str
    goes_on: bool  # True to load the full state, optimizers included


@dataclass(frozen=True, slots=True, eq=False)
class Adopt:
    """Load the state from before a step, after a restart."""

    policies: Mapping[str, Mapping[str, Tensor]]
    critic: Mapping[str, Tensor]
    optimizers: Mapping[str, Tensor]
    parts: Mapping[str, float]  # state of credit and schedule


@dataclass(frozen=True, slots=True, eq=False)
class Learn:
    """Run one training step."""

    episodes: Sequence[Episode]
    progress: Progress
    rates: Mapping[str, float]  # learning rate of each policy, before its schedule


@dataclass(frozen=True, slots=True)
class Tell:
    """Gather the optimizer state, for the first rank to save."""


@dataclass(frozen=True, slots=True)
class Done:
    """Reply after a finished operation.

    The first reply means that the models are loaded, the second that the group is formed. ``pid`` is the process id of
    the rank.
    """

    pid: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Failure report from an exiting rank."""

    said: str
    kind: str  # "value", "run", "fault", or "gone" if other ranks were unreachable
    trace: str

    @staticmethod
    def of(error: Exception) -> Failed:
        """Serialize an exception."""
        trace = "".join(traceback.format_exception(error))
        if isinstance(error, RunError):
            return Failed(str(error), "run", trace)
        if isinstance(error, ValueError) and deliberate(error):
            return Failed(str(error), "value", trace)
        return Failed(described(error), "gone" if of_company(error) else "fault", trace)


class RankFaultError(Exception):
    """Unexpected error on another rank; a note holds the rank's traceback."""


def of_company(error: Exception) -> bool:
    """Return True if an error indicates unreachable ranks.

    The test uses the error message, because torch has no exception type for it.
    """
    said = str(error)
    return isinstance(error, OSError | EOFError) or (
        isinstance(error, RuntimeError)
        and not isinstance(error, RunError)
        and any(word in said for word in ("gloo", "NCCL", "Connection", "peer", "Socket", "timed out", "Timed out"))
    )


class Line:
    """Blocking connection between two processes of the run.

    Args:
        end: socket of this process.
        patience: timeout in seconds for the peer to accept sent data; 0 waits forever.
    """

    def __init__(self, end: socket.socket, patience: float = 0.0) -> None:
        whole = int(min(patience, LONGEST_SECONDS))
        microseconds = int((min(patience, LONGEST_SECONDS) - whole) * 1e6)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", whole, microseconds))
        self._connection = Connection(end.detach())

    def send(self, message: object) -> None:
        """Send a message.

        Raises:
            OSError: the peer has ended, or did not accept the data in time.
        """
        self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def receive(self, seconds: float | None = None) -> Any:
        """Wait for the next message.

        Args:
            seconds: timeout; None waits forever.

        Raises:
            EOFError: the peer has ended, and no message is left.
            TimeoutError: no message arrived in time.
        """
        try:
            if seconds is None or self._connection.poll(seconds):
                return pickle.loads(self._connection.recv_bytes())
        except OSError as error:  # the peer may have ended in the middle of a message
            raise EOFError from error
        raise TimeoutError

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
