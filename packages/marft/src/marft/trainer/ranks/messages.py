"""Messages between the first rank and the other ranks.

Weights and gradients travel directly between the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from marft.common.errors import RunError
from marft.common.processes.messages import Completed, Ready
from marft.common.processes.remote_error import RemoteError
from marft.common.types import EPISODE_TYPES, Episode
from marft.config.interfaces.schedule import Progress


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
    component_state: Mapping[str, float]  # state of credit and schedule


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


TO_RANK = (StartRank, LoadCheckpoint, LoadState, TrainStep, NewEpisodes, GatherOptimizer)
# Ready: the models are loaded; Completed(0): the group is formed; then a Completed for each operation
FROM_RANK = (Ready, Completed, RemoteError)
VALUES = (*EPISODE_TYPES, Progress)
