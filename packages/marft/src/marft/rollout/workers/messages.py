"""Messages between a run and its worker processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from marft.agents.agents import Agent, ToolUse
from marft.agents.prompt_messages import TruncationPolicy
from marft.common.errors import EpisodeFailedError
from marft.common.processes.messages import Ready
from marft.common.processes.remote_error import RemoteError
from marft.common.reasoning import StopString
from marft.common.token_data import Grammar
from marft.common.types import (
    EPISODE_TYPES,
    ActionKey,
    AgentProfile,
    Choice,
    Completion,
    Episode,
    Option,
    Prompt,
    SamplingParams,
    Status,
    Tool,
    VersionRange,
)
from marft.config.interfaces.engine import Sampler

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
class WorkerReady(Ready):
    """Ready message: the worker has built the recipe's components."""

    agents: tuple[Agent, ...]
    usage: Mapping[str, float]


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


TO_WORKER = (
    StartWorker,
    ChangeTeam,
    PlayAttempt,
    RequestResult,
    SampledToken,
    LeaseGranted,
    CancelAttempts,
    Ping,
    EndRun,
)
FROM_WORKER = (
    WorkerReady, RemoteError, SampleRequest, ChooseRequest, CancelRequest, LeaseRequest, TurnRequest, ReleaseLease,
    Quiescence, EpisodeEnded, EpisodeRewarded, AttemptFailed, AttemptsCanceled, Pong,
)  # fmt: skip  # a RemoteError before WorkerReady: the start failed, and the worker exits
VALUES = (
    *EPISODE_TYPES, Agent, AgentProfile, Completion, Grammar, Prompt, RemoteError, RequestFailure, SamplingParams,
    StopString, Tool, ToolUse, TruncationPolicy,
)  # fmt: skip
