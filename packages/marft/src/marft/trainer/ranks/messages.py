"""Messages between the first rank and the other ranks.

Weights and gradients travel directly between the ranks.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from torch import Tensor

from marft.common.errors import RunError
from marft.common.processes.remote_error import RemoteError
from marft.common.types import Episode
from marft.config.interfaces.schedule import Progress

MAX_SECONDS = 10**6  # maximum timeout that operating systems accept


@dataclass(frozen=True, slots=True)
class StartRank:
    """First message to a rank."""

    run: bytes  # pickled RunSettings; unpickling runs code of the recipe and may fail
    init_method: str  # rendezvous address: a file, or tcp://host:port
    rank: int
    log_level: int  # log level of transformers


@dataclass(frozen=True, slots=True)
class LoadCheckpoint:
    """Load a checkpoint."""

    path: str
    is_resume: bool  # True to load the full state, optimizers included


@dataclass(frozen=True, slots=True, eq=False)
class LoadState:
    """Load the state from before a step, after a restart."""

    policies: Mapping[str, Mapping[str, Tensor]]
    critic: Mapping[str, Tensor]
    optimizers: Mapping[str, Tensor]
    parts: Mapping[str, float]  # state of credit and schedule


@dataclass(frozen=True, slots=True, eq=False)
class TrainStep:
    """Run one training step."""

    episodes: Sequence[Episode]
    progress: Progress
    rates: Mapping[str, float]  # learning rate of each policy, before its schedule


@dataclass(frozen=True, slots=True, eq=False)
class NewEpisodes:
    """Continue the training step in progress with new episodes; a part of the step, without a reply of its own."""

    episodes: Sequence[Episode]


@dataclass(frozen=True, slots=True)
class GatherOptimizer:
    """Gather the optimizer state, for the first rank to save."""


@dataclass(frozen=True, slots=True)
class OperationDone:
    """Reply after a finished operation.

    The first reply means that the models are loaded, the second that the group is formed. ``pid`` is the process id of
    the rank.
    """

    pid: int


def serialize_failure(error: Exception) -> RemoteError:
    """Serialize the error that ends a rank; its kind is "gone" if the error means that other ranks were unreachable."""
    failure = RemoteError.from_error(error)
    return replace(failure, kind="gone") if failure.kind == "fault" and is_peer_error(error) else failure


def is_peer_error(error: Exception) -> bool:
    """Return True if an error indicates unreachable ranks.

    The test uses the error message, because torch has no exception type for it.
    """
    message = str(error)
    return isinstance(error, OSError | EOFError) or (
        isinstance(error, RuntimeError)
        and not isinstance(error, RunError)
        and any(word in message for word in ("gloo", "NCCL", "Connection", "peer", "Socket", "timed out", "Timed out"))
    )


class RankConnection:
    """Blocking connection between two processes of the run.

    Args:
        end: socket of this process.
        patience: timeout in seconds for the peer to accept sent data; 0 waits forever.
    """

    def __init__(self, end: socket.socket, patience: float = 0.0) -> None:
        seconds = int(min(patience, MAX_SECONDS))
        microseconds = int((min(patience, MAX_SECONDS) - seconds) * 1e6)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", seconds, microseconds))
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
