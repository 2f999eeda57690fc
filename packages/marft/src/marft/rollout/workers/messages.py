"""Messages between a run and its worker processes, and the stream that carries them over a socket."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marft.agents.agents import Agent
from marft.common.error_origin import describe_error
from marft.common.errors import EpisodeFailedError, UserError
from marft.common.processes.remote_error import RemoteError
from marft.common.types import (
    ActionKey,
    Choice,
    Completion,
    Episode,
    Option,
    Prompt,
    SamplingParams,
    Status,
    VersionRange,
)
from marft.config.interfaces.engine import Sampler

HEADER = struct.Struct(">Q")  # length of the frame in bytes
BUFFER = 2**20  # read buffer in bytes


# from the run to a worker


@dataclass(frozen=True, slots=True)
class StartWorker:
    """First message to a worker: build the components of the recipe.

    ``run`` and ``formats`` are pickled. Unpickling runs code of the recipe and may fail.
    """

    run: bytes  # RunSettings
    formats: bytes  # ChatFormat of each policy's model, by policy
    log_level: int  # log level of transformers


@dataclass(frozen=True, slots=True)
class ChangeTeam:
    """Set the team for later attempts.

    ``team`` is a pickled tuple: agents, organization, channel. The last two are None for the recipe's own.
    """

    team: bytes


@dataclass(frozen=True, slots=True)
class PlayAttempt:
    """Play an attempt under the given number."""

    number: int
    attempt: bytes


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Failure of a request; the episode fails."""

    status: Status
    reason: str

    def to_error(self) -> EpisodeFailedError:
        """Return the exception that the engine raised."""
        return EpisodeFailedError("timed_out" if self.status == "timed_out" else "failed", self.reason)


@dataclass(frozen=True, slots=True, eq=False)
class RequestResult:
    """Result of the request with this number.

    A choice has no options in the message; the worker has them.
    """

    number: int
    outcome: Completion | tuple[Choice, VersionRange] | RequestFailure


@dataclass(frozen=True, slots=True)
class SampledToken:
    """Next token of a request with a listener.

    The message does not start work in the worker.
    """

    number: int
    token: int


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """Start of the lease or turn with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class CancelAttempts:
    """Cancel all attempts in progress."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Heartbeat request."""


@dataclass(frozen=True, slots=True)
class EndRun:
    """End of the run; the worker exits."""


# from a worker to the run


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """Ready message: the worker has built the recipe's components."""

    pid: int
    agents: tuple[Agent, ...]
    usage: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StartFailed:
    """Start failed; the worker exits."""

    fault: RemoteError


@dataclass(frozen=True, slots=True, eq=False)
class SampleRequest:
    """Sampling request of an agent.

    The listener stays in the worker. ``live`` is True if there is one.
    """

    number: int
    policy: str
    prompt: Prompt
    sampling: SamplingParams
    key: ActionKey
    live: bool = False

    async def run_on(self, engine: Sampler, send: Callable[[object], None] = lambda _: None) -> Completion:
        """Sample with an engine.

        Args:
            engine: engine to sample with.
            send: function that sends a message to the worker, from any thread.
        """

        def listener(token: int) -> None:
            send(SampledToken(self.number, token))

        sampling = replace(self.sampling, on_token=listener) if self.live else self.sampling
        return await engine.sample(self.policy, self.prompt, sampling, self.key)


@dataclass(frozen=True, slots=True, eq=False)
class ChooseRequest:
    """Agent request to choose from a list of options."""

    number: int
    policy: str
    prompt: Prompt
    options: Sequence[Option]
    sampling: SamplingParams
    key: ActionKey

    async def run_on(
        self,
        engine: Sampler,
        send: Callable[[object], None] = lambda _: None,  # noqa: ARG002
    ) -> tuple[Choice, VersionRange]:
        """Choose with an engine; return the choice without its options."""
        choice, versions = await engine.choose(self.policy, self.prompt, self.options, self.sampling, self.key)
        return Choice((), choice.chosen, choice.log_probs, choice.usage), versions


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Cancel the request with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """Request for a slot, out of ``count`` slots in the run, for example for concurrent tool calls."""

    number: int
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """Request for a turn within a rate limit of the run, for example for a judge."""

    number: int
    name: str
    per_minute: float


@dataclass(frozen=True, slots=True)
class ReleaseLease:
    """Return the lease or turn with this number, or cancel its request."""

    number: int


@dataclass(frozen=True, slots=True)
class Quiescence:
    """Quiescence report: every episode waits for an answer.

    ``received`` counts the messages so far that may start work (:class:`PlayAttempt`, :class:`RequestResult`). The
    worker sends no request before the next such message.
    """

    received: int


@dataclass(frozen=True, slots=True)
class EpisodeEnded:
    """Episode end; the computation of its rewards continues."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeRewarded:
    """Rewarded episode, without its task; the run has the task."""

    number: int
    episode: Episode
    usage: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """Attempt failure for a reason outside the episode."""

    number: int
    fault: RemoteError


@dataclass(frozen=True, slots=True)
class AttemptsCanceled:
    """Confirmation after :class:`CancelAttempts`: no attempt remains in progress."""

    usage: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Pong:
    """Heartbeat reply."""


def pickle_value(value: object, description: str) -> bytes:
    """Pickle a value for another process.

    Args:
        value: value to pickle.
        description: description of the value for the error message.

    Raises:
        UserError: the value cannot be pickled.
    """
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise UserError(
            f"rollout.workers: {description} cannot be sent to another process ({describe_error(error)}); keep to "
            "plain values and to classes that can be imported, or set workers = 0"
        ) from error


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
