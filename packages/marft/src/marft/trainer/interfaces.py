"""The seams of learning: what a credit, an objective and a schedule take and give."""

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
KL_TOKENS = 1024  # of each agent, on which the KL of a whole update is measured: whole actions that hold as many,
KL_ACTIONS = 4  # and at least so many
LOG_RATIO_LIMIT = 20.0  # nats: log-ratios are clamped before they are exponentiated


def split_rows(flat: Floats, sizes: Sequence[int] | npt.NDArray[np.int64]) -> list[Floats]:
    """Cut ``flat`` into rows of ``sizes``: as many rows as sizes, also when there are none."""
    return np.split(flat, np.cumsum(sizes)[:-1]) if len(sizes) else []


def all_actions(episodes: Sequence[Episode]) -> list[Action]:
    """The actions of ``episodes``, flat, in order: the row order of values, credits and features."""
    return [action for episode in episodes for action in episode.actions]


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """V at every decision, in the row order of :func:`all_actions`.

    >>> values = Values(actions=[np.array([0.5]), np.array([0.7])], bootstrap=[{}, {"planner": 0.9, "coder": 0.4}])
    >>> values.final(0), values.final(1), values.final(1, "coder")
    (0.0, 0.9, 0.4)
    """

    actions: Sequence[Floats]  # each [1] at action level, [sampled tokens] at token level
    bootstrap: Sequence[Mapping[str, float]] = ()  # [E] of the final observation by agent; empty unless truncated

    def final(self, episode: int, agent: str = "") -> float:
        """V at the end of an episode for one agent, or for the one that decided first in the last step; 0 where the
        episode was not truncated."""
        of = self.bootstrap[episode] if self.bootstrap else {}
        return (of[agent] if agent else next(iter(of.values()))) if of else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class CreditInputs:
    """What credit is judged by. Actions are in the row order of :func:`all_actions`.

    >>> inputs = CreditInputs(episodes=(), level="action")
    >>> inputs.actions, inputs.values is None
    ([], True)
    """

    episodes: Sequence[Episode]
    level: Level
    values: Values | None = None  # of the critic, where the algorithm has one
    costs: Sequence[Floats] = ()  # taken off the reward of each decision: KL in the reward; none when empty
    traces: Floats | None = None  # [actions] in [0, 1]: how far a trace reaches back through a later step (A2PO)
    trained: Collection[str] | None = None  # policies that learn from it; None where all do

    @property
    def actions(self) -> list[Action]:
        return all_actions(self.episodes)

    def sizes(self) -> list[int]:
        """Decisions of each action: 1 at action level; at token level the sampled tokens, or one choice."""
        if self.level == "action":
            return [1] * len(self.actions)
        return [action.decisions for action in self.actions]

    def spread(self, of_actions: Floats) -> list[Floats]:
        """One number an action → one a decision."""
        return [np.full(size, x) for size, x in zip(self.sizes(), of_actions, strict=True)]

    def trains(self, action: Action) -> bool:
        """Whether the action's policy learns: credit that scales over the batch leaves the others out."""
        return self.trained is None or action.policy in self.trained

    def cost_of(self, index: int) -> float:
        """What is taken off the reward of one action, in all."""
        return float(self.costs[index].sum()) if self.costs else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """What is to become likelier against what is to become less likely: trained actions of two sides, by their keys.

    >>> Comparison(better=(), worse=(), agent="coder").weight
    1.0
    """

    better: tuple[ActionKey, ...]
    worse: tuple[ActionKey, ...]
    agent: str = ""  # whose actions they are; "": of all agents together
    weight: float = 1.0  # of its loss


@dataclass(frozen=True, slots=True, eq=False)
class Credits:
    """What each decision is worth (advantages) and, with a critic, what that should have said (returns).

    ``monte_carlo`` are the returns with λ = 1, which a critic is fitted to before the first policy step. Actions that
    only serve to judge others are not ``trained``; by default all are. ``groups`` names the group in which each action
    was compared, "" where in none: it is what is written down, and nothing is computed from it. ``comparisons`` are
    what an objective that compares is given; what is trained is in one of them.
    """

    advantages: Sequence[Floats]
    returns: Sequence[Floats] = ()
    monte_carlo: Sequence[Floats] = ()
    trained: Sequence[bool] = ()
    groups: Sequence[str] = ()  # [actions]; empty where nothing is compared
    comparisons: Sequence[Comparison] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)


class Credit(Protocol):
    """Credit assignment: inputs → advantages and returns for every decision. What it asks of a recipe is in its class
    (:class:`marft.config.parts.CreditPart`)."""

    def assign(self, inputs: CreditInputs) -> Credits: ...


@runtime_checkable
class Stateful(Protocol):
    """A credit or schedule that carries numbers from step to step. They are checkpointed."""

    def state_dict(self) -> dict[str, float]: ...

    def load_state_dict(self, state: Mapping[str, float]) -> None: ...


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

    @property
    def clip_width(self) -> float: ...

    def scaled(self, scale: float) -> Self: ...

    def __call__(self, inputs: LossInputs) -> LossOutput: ...


@dataclass(frozen=True, slots=True, eq=False)
class PairInputs:
    """One row a comparison. The log-ratio of a side is Σ (log π − log π_ref) / Z over its actions, with a gradient."""

    better: Tensor  # [P] log-ratio of the better side
    worse: Tensor  # [P]
    better_log_prob: Tensor  # [P] mean log π of the better side's decisions, with a gradient
    better_length: Tensor  # [P] decisions of the better side
    worse_length: Tensor  # [P]


class TeammateWeight(Protocol):
    """How much text that somebody else wrote in an agent's turn weighs in the agent's loss. Pure."""

    def weigh(self, log_probs: Tensor, author: Tensor, advantages: Tensor) -> Tensor:
        """The weight of each such token, [T], without gradient.

        Args:
            log_probs: of the agent whose turn it is, [T].
            author: of who wrote it, when that was, [T]; 0 where nobody knows them.
            advantages: of the agent's own decision that each token led to, [T].
        """
        ...


class Progress(NamedTuple):
    """What a schedule plans by: training steps, environment steps of all episodes before this one, and the mean size of
    the advantages of each policy's decisions, before they were normalised."""

    step: int
    environment_steps: int
    advantages: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class UpdatePhase:
    """Policies that step together. Others get no rows and no optimizer call.

    ``clip_scale`` narrows or widens the objective's clip for this phase. With ``kl_limit`` the phase's whole change is
    accepted only if the policies moved no further; else it is scaled back, and at last undone.
    """

    policies: tuple[str, ...]
    clip_scale: float = 1.0
    kl_limit: float = 0.0  # nats a token; 0 accepts everything


class UpdateSchedule(Protocol):
    """Which policies step, in which order, and how those that step later take account of those before.

    ``correction`` is what earlier phases of the same update do to later ones: ``"product"`` weighs an action with the
    new/old ratios of the policies updated before, ``"preceding"`` shifts its ratio by them (A2PO). Their product is cut
    to ``[1/ratio_limit, ratio_limit]``.
    """

    correction: ClassVar[Literal["", "product", "preceding"]]

    @property
    def ratio_limit(self) -> float: ...

    def plan(self, progress: Progress, policies: Sequence[str], seed: int) -> Iterable[UpdatePhase]: ...
