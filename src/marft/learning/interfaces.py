"""The seams of learning: what a credit, an objective and a schedule take and give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from marft.types import Episode

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["action", "token"]
Floats = npt.NDArray[np.float64]


def split_rows(flat: Floats, sizes: Sequence[int] | npt.NDArray[np.int64]) -> list[Floats]:
    """Cut ``flat`` into rows of ``sizes``: as many rows as sizes, also when there are none."""
    return np.split(flat, np.cumsum(sizes)[:-1]) if len(sizes) else []


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """V at every decision, in the row order of ``marft.types.all_actions``.

    >>> Values(actions=[np.array([0.5]), np.array([0.7])], bootstrap=np.array([0.0])).actions[1].tolist()
    [0.7]
    """

    actions: Sequence[Floats]  # each [1] at action level, [sampled tokens] at token level
    bootstrap: Floats  # [E] value of the final observation of truncated episodes, else 0


@dataclass(frozen=True, slots=True, eq=False)
class Credits:
    """What each decision is worth (advantages) and what the critic should have said (returns), aligned to Values.

    ``monte_carlo`` are the returns with λ = 1, which a critic is fitted to before the first policy step.
    """

    advantages: Sequence[Floats]
    returns: Sequence[Floats]
    monte_carlo: Sequence[Floats]


class Credit(Protocol):
    """Credit assignment: episodes → advantages and returns for every decision. Pure."""

    def assign(self, episodes: Sequence[Episode], values: Values, level: Level) -> Credits: ...


@dataclass(frozen=True, slots=True, eq=False)
class LossInputs:
    """One row a unit of the surrogate: an action at action level, a sampled token at token level.

    ``log_probs`` are over Z (eq. 6), under the policy now; ``old_log_probs`` under the policy that the step began
    with. ``advantages`` are already normalised over the batch.
    """

    log_probs: Tensor  # [U], with gradient
    old_log_probs: Tensor  # [U]
    advantages: Tensor  # [U]


@dataclass(frozen=True, slots=True, eq=False)
class LossOutput:
    """The loss of each unit, to be minimised, and a number for each unit of each metric.

    Terms stay unsummed: the learner weighs them with denominators of the global minibatch, so that no split into
    micro-batches changes the gradient, and counts metrics by agent.
    """

    terms: Tensor  # [U]
    metrics: Mapping[str, Tensor] = field(default_factory=dict)  # each [U]


class Objective(Protocol):
    """A loss. Pure."""

    def __call__(self, inputs: LossInputs) -> LossOutput: ...


class Progress(NamedTuple):
    """How far a run is: training steps, and environment steps of all episodes before this one."""

    step: int
    environment_steps: int


@dataclass(frozen=True, slots=True)
class UpdatePhase:
    """Policies that step together. Others get no rows and no optimizer call."""

    policies: tuple[str, ...]


class UpdateSchedule(Protocol):
    """Which policies step, in which order."""

    def plan(self, progress: Progress, policies: Sequence[str]) -> Iterable[UpdatePhase]: ...
