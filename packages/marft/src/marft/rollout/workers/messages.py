"""What a run and its worker processes say to each other."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from marft.agents.agents import Agent
from marft.agents.engine import Sampler
from marft.common.errors import EpisodeFailedError, RunError
from marft.common.faults import deliberate, described
from marft.common.types import ActionKey, Choice, Completion, Episode, Option, Prompt, Sampling, Status, Versions


class WorkerFaultError(Exception):
    """What nobody foresaw in a worker process, in words, with its traceback there as a note."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error, as it travels: errors themselves need not pickle."""

    said: str
    kind: str  # "value", "run" or "fault"
    trace: str

    @staticmethod
    def of(error: BaseException) -> Fault:
        kind = "run" if isinstance(error, RunError) else "fault"
        if isinstance(error, ValueError) and deliberate(error):
            kind = "value"
        said = described(error) if kind == "fault" else str(error)
        return Fault(said, kind, "".join(traceback.format_exception(error)))

    def error(self) -> Exception:
        """What the run raises in its place."""
        if self.kind != "fault":
            return ValueError(self.said) if self.kind == "value" else RunError(self.said)
        error = WorkerFaultError(f"in a worker process: {self.said}")
        error.add_note(self.trace)
        return error


# from the run to a worker


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message. ``run`` and ``formats`` are pickled: reading them runs what the recipe names, and may fail."""

    run: bytes  # RunSettings
    formats: bytes  # how each policy's model is spoken to: a ChatFormat, by policy
    verbosity: int  # of transformers


@dataclass(frozen=True, slots=True)
class Change:
    """From here on this team plays: its agents, and its organization and channel where they are not the recipe's."""

    team: bytes


@dataclass(frozen=True, slots=True)
class Play:
    """Play an attempt, under this number."""

    number: int
    attempt: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """An engine has nothing to give: the episode fails."""

    status: Status
    reason: str

    def error(self) -> EpisodeFailedError:
        """What the engine raised."""
        return EpisodeFailedError("timed_out" if self.status == "timed_out" else "failed", self.reason)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What came of the request of this number. A choice comes without its options, which the worker has."""

    number: int
    outcome: Completion | tuple[Choice, Versions] | Failure


@dataclass(frozen=True, slots=True)
class Sampled:
    """The next token of the request of this number, to which somebody listens. It sets nothing going."""

    number: int
    token: int


@dataclass(frozen=True, slots=True)
class Granted:
    """The lease or turn of this number begins."""

    number: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody needs what is being played any more."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there?"""


@dataclass(frozen=True, slots=True)
class End:
    """The run is over."""


# from a worker to the run


@dataclass(frozen=True, slots=True)
class Ready:
    """Everything that the recipe names is connected."""

    pid: int
    agents: tuple[Agent, ...]
    usage: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Refused:
    """It is not, and the worker ends."""

    fault: Fault


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A request of a seat. Its listener stays where it is; ``live`` says that there is one."""

    number: int
    policy: str
    prompt: Prompt
    sampling: Sampling
    key: ActionKey
    live: bool = False

    async def put_to(self, engine: Sampler, tell: Callable[[object], None] = lambda _: None) -> Completion:
        """What the engine samples.

        Args:
            tell: sends a message to the worker, on any thread.
        """

        def listener(token: int) -> None:
            tell(Sampled(self.number, token))

        sampling = replace(self.sampling, listener=listener) if self.live else self.sampling
        return await engine.sample(self.policy, self.prompt, sampling, self.key)


@dataclass(frozen=True, slots=True, eq=False)
class Choose:
    """A request of a seat that chooses from a list."""

    number: int
    policy: str
    prompt: Prompt
    options: Sequence[Option]
    sampling: Sampling
    key: ActionKey

    async def put_to(self, engine: Sampler, tell: Callable[[object], None] = lambda _: None) -> tuple[Choice, Versions]:  # noqa: ARG002
        """What the engine chooses."""
        choice, versions = await engine.choose(self.policy, self.prompt, self.options, self.sampling, self.key)
        return Choice((), choice.chosen, choice.log_probs, choice.usage), versions


@dataclass(frozen=True, slots=True)
class Forget:
    """Nobody waits for that request any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Something of which the run has ``count`` in all, such as calls of a tool that are under way, is asked for."""

    number: int
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One of those of which the whole run has ``per_minute``, such as requests to a judge, is asked for."""

    number: int
    name: str
    per_minute: float


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The lease or turn of this number is over, or no longer wanted."""

    number: int


@dataclass(frozen=True, slots=True)
class Still:
    """After this many messages that may have set something going (:class:`Play`, :class:`Answer`), every episode waits
    for an answer: no request can come before the next one of those."""

    received: int


@dataclass(frozen=True, slots=True)
class Over:
    """An episode has come to its end; what it earned is still being worked out."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """An episode, without its task, which the run has."""

    number: int
    episode: Episode
    usage: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Broken:
    """An episode could not be played for a reason that is not its own."""

    number: int
    fault: Fault


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Nothing is played any more."""

    usage: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Pong:
    """I am here."""


def pickled(value: object, what: str) -> bytes:
    """A value as it travels.

    Args:
        what: it is, for a message to people.

    Raises:
        ValueError: it cannot be sent to another process.
    """
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ValueError(
            f"rollout.processes: {what} cannot be sent to another process ({described(error)}); keep to plain values "
            "and to classes that can be imported, or set processes = 0"
        ) from error
