"""Interfaces of training: inputs and outputs of credit, objectives and schedules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from marft.common.types import Action, ActionKey, Episode

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["action", "token"]
Floats = npt.NDArray[np.float64]
KL_TOKENS = 1024  # minimum decisions per agent for the KL of an update
KL_ACTIONS = 4  # minimum actions per agent for the same measurement
LOG_RATIO_LIMIT = 20.0  # nats; log-ratios are clamped before exponentiation


def split_rows(flat: Floats, sizes: Sequence[int] | npt.NDArray[np.int64]) -> list[Floats]:
    """Split ``flat`` into rows of the given sizes; no sizes give no rows."""
    return np.split(flat, np.cumsum(sizes)[:-1]) if len(sizes) else []


def flatten_actions(episodes: Sequence[Episode]) -> list[Action]:
    """Return the actions in ``episodes``, flat and in order.

    Values, credits and features have the same row order.
    """
    return [action for episode in episodes for action in episode.actions]


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """V at every decision, in the row order of :func:`flatten_actions`.

    >>> values = Values(actions=[np.array([0.5]), np.array([0.7])], bootstrap=[{}, {"planner": 0.9, "coder": 0.4}])
    >>> values.final(0), values.final(1), values.final(1, "coder")
    (0.0, 0.9, 0.4)
    """

    actions: Sequence[Floats]  # each [1] at action level, [sampled tokens] at token level
    bootstrap: Sequence[Mapping[str, float]] = ()  # [E] final value by agent; empty unless truncated

    def final(self, episode: int, agent: str = "") -> float:
        """Return V at the end of an episode for an agent; 0 unless truncated.

        The default agent is the first agent that decided in the last step.
        """
        final_values = self.bootstrap[episode] if self.bootstrap else {}
        return (final_values[agent] if agent else next(iter(final_values.values()))) if final_values else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class CreditInputs:
    """Credit assignment inputs, with actions in the row order from :func:`flatten_actions`.

    >>> inputs = CreditInputs(episodes=(), level="action")
    >>> inputs.actions, inputs.values is None
    ([], True)
    """

    episodes: Sequence[Episode]
    level: Level
    values: Values | None = None  # values from the critic; None without a critic
    costs: Sequence[Floats] = ()  # KL cost of each decision, subtracted from its reward; empty without KL in the reward
    traces: Floats | None = None  # [actions] ratio product of the policies updated before (A2PO)
    trained: Collection[str] | None = None  # policies in training; None for all

    @property
    def actions(self) -> list[Action]:
        """Actions in the episodes, flat and in order."""
        return flatten_actions(self.episodes)

    def sizes(self) -> list[int]:
        """Return each action's number of decisions.

        The number is 1 at action level. At token level it is the number of sampled tokens, or 1 for a choice.
        """
        if self.level == "action":
            return [1] * len(self.actions)
        return [action.num_decisions for action in self.actions]

    def broadcast(self, action_values: Floats) -> list[Floats]:
        """Broadcast one number per action to its decisions."""
        return [np.full(size, x) for size, x in zip(self.sizes(), action_values, strict=True)]

    def is_trained(self, action: Action) -> bool:
        """Return True if the action's policy is in training.

        Credit that scales over the batch ignores other actions.
        """
        return self.trained is None or action.policy in self.trained

    def cost_of(self, index: int) -> float:
        """Return the total cost of an action.

        Args:
            index: row of the action.
        """
        return float(self.costs[index].sum()) if self.costs else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Preference pair: keys of the trained actions on the better and the worse side.

    >>> Comparison(better=(), worse=(), agent="coder").weight
    1.0
    """

    better: tuple[ActionKey, ...]
    worse: tuple[ActionKey, ...]
    agent: str = ""  # agent of the actions; "" for the whole team
    weight: float = 1.0  # weight of the pair's loss


@dataclass(frozen=True, slots=True, eq=False)
class CreditOutput:
    """Advantages of every decision and, with a critic, returns as the critic's targets.

    Args:
        advantages: advantage of each decision, one array per action.
        returns: targets of the critic, one array per action; empty without a critic.
        monte_carlo: returns with λ = 1, used to fit the critic before the first policy step.
        trained: False for actions that only serve to judge others; empty means that all actions are trained.
        groups: name of each action's comparison group, "" without a group. Recorded only; no computation uses it.
        comparisons: pairs for an objective on pairs. Each trained action is then in a pair.
        metrics: metrics of the batch.
    """

    advantages: Sequence[Floats]
    returns: Sequence[Floats] = ()
    monte_carlo: Sequence[Floats] = ()
    trained: Sequence[bool] = ()
    groups: Sequence[str] = ()  # [actions]; empty without groups
    comparisons: Sequence[Comparison] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)


class Credit(Protocol):
    """Credit assignment: inputs → advantages and returns of every decision.

    Requirements on a recipe are class attributes (:class:`marft.config.plugin_types.CreditPart`).
    """

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Return the advantages of the batch."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """Credit or schedule with numbers that persist between steps, saved in checkpoints."""

    def state_dict(self) -> dict[str, float]:
        """Return the numbers to save."""
        ...

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the numbers from :meth:`state_dict`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class LossInputs:
    """Objective inputs: a row per unit, an action at action level or a sampled token at token level.

    ``log_probs`` are divided by Z (eq. 6), under the current policy. ``old_log_probs`` are under the policy at the
    start of the step. ``advantages`` are already normalized over the batch.
    """

    log_probs: Tensor  # [U], with gradient
    old_log_probs: Tensor  # [U]
    advantages: Tensor  # [U]


@dataclass(frozen=True, slots=True, eq=False)
class LossOutput:
    """Loss of each unit, to be minimized, and metrics for each unit.

    Terms are not summed. The learner weights them with denominators of the global minibatch, so no split into
    micro-batches changes the gradient. Metrics are counted by agent.
    """

    terms: Tensor  # [U]
    metrics: Mapping[str, Tensor] = field(default_factory=dict)  # each [U]


class Objective(Protocol):
    """Objective: a pure function from log-probabilities and advantages to losses."""

    @property
    def clip_width(self) -> float:
        """Clip width below 1; 0 without a clip."""
        ...

    def scaled(self, scale: float) -> Self:
        """Return a copy with clip widths multiplied by ``scale``."""
        ...

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Return the loss of each unit."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PairInputs:
    """Pair loss inputs: one row per pair.

    The log-ratio of a side is Σ (log π − log π_ref) / Z over its actions, with gradient.
    """

    better: Tensor  # [P] log-ratio of the better side
    worse: Tensor  # [P]
    better_log_prob: Tensor  # [P] mean log π of the better side's decisions, with a gradient
    better_length: Tensor  # [P] decisions of the better side
    worse_length: Tensor  # [P]


class TeammateWeighting(Protocol):
    """Weight for text by other authors in an agent's turn, for the agent's loss; a pure function."""

    def compute_weights(self, log_probs: Tensor, author: Tensor, advantages: Tensor) -> Tensor:
        """Return the weight of each teammate token, shape [T], without gradient.

        Args:
            log_probs: log-probabilities under the policy of the turn's agent, shape [T].
            author: log-probabilities under the author's policy at sampling, shape [T]; 0 if unknown.
            advantages: advantage of the agent's own decision that follows each token, shape [T].
        """
        ...


class Progress(NamedTuple):
    """Training progress, the input to a schedule.

    Args:
        step: index of the training step.
        environment_steps: environment steps of all earlier episodes.
        advantages: mean absolute advantage of each policy's decisions, before normalization.
    """

    step: int
    environment_steps: int
    advantages: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class UpdatePhase:
    """Policies for a joint update; other policies get no rows and no optimizer step.

    ``clip_scale`` multiplies the objective's clip width in this phase. With ``kl_limit``, the change of the whole phase
    is accepted only up to this KL. A larger change is scaled back, and finally undone.
    """

    policies: tuple[str, ...]
    clip_scale: float = 1.0
    kl_limit: float = 0.0  # nats per token; 0 accepts every change


class UpdateSchedule(Protocol):
    """Order of policy updates in a training step, and corrections for earlier updates.

    ``correction`` defines the effect of earlier phases on later phases of the same step. ``"product"`` weights an
    action with the new/old ratios of the policies updated before. ``"preceding"`` multiplies its ratio by them (A2PO).
    The product of ratios is clipped to ``[1/ratio_limit, ratio_limit]``.
    """

    correction: ClassVar[Literal["", "product", "preceding"]]

    @property
    def ratio_limit(self) -> float:
        """Maximum product of ratios."""
        ...

    def plan(self, progress: Progress, policies: Sequence[str], seed: int) -> Iterable[UpdatePhase]:
        """Yield the phases of a training step.

        Args:
            progress: progress of training.
            policies: policies in training.
            seed: seed of the run.
        """
        ...
