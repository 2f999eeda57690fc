"""Credit assignment: advantages and returns of every decision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from marft.common.types import Action, ActionKey, Episode
from marft.config.plugins import Plugin

Level = Literal["action", "token"]
Floats = npt.NDArray[np.float64]


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
    >>> values.final_value(0), values.final_value(1), values.final_value(1, "coder")
    (0.0, 0.9, 0.4)
    """

    actions: Sequence[Floats]  # each [1] at action level, [sampled tokens] at token level
    bootstrap: Sequence[Mapping[str, float]] = ()  # [E] final value by agent; empty unless truncated

    def final_value(self, episode: int, agent: str = "") -> float:
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

    def action_kl_cost(self, index: int) -> float:
        """Return the total KL cost of an action.

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


class Credit(Plugin, ABC, kind="credits", label="a credit", together=("state_dict", "load_state_dict")):
    """Base class for credit assignment: inputs → advantages and returns of every decision.

    Class attributes declare the requirements on a recipe.
    """

    needs_critic: ClassVar[bool] = False
    supports_a2po: ClassVar[bool] = False  # supports the correction for policies updated before (A2PO)
    # comparison group of rewards: attempts at the same task, or none
    comparison_group: ClassVar[Literal["", "task"]] = ""
    makes_pairs: ClassVar[bool] = False  # produces comparisons for a pairwise objective
    ranks_own_rewards: ClassVar[bool] = False  # depends on the ranking of attempts by agents' own rewards
    reads_costs: ClassVar[bool] = True  # has a place for the KL cost of actions
    absolute_weights: ClassVar[bool] = False  # advantages are absolute weights and must not be normalized

    @abstractmethod
    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Return the advantages of the batch, one array of decisions per action."""

    @property
    def per_agent(self) -> bool:
        """True if each agent is credited for its own reward instead of the team's."""
        return False

    @property
    def fork_plan(self) -> object | None:
        """Plan for replayed episodes (:class:`marft.rollout.fork_plans.ForkPlan`); None without forks."""
        return None

    @property
    def keeps_state(self) -> bool:
        """True if the credit keeps numbers between steps: its class has a :meth:`state_dict` of its own."""
        return type(self).state_dict is not Credit.state_dict

    def state_dict(self) -> dict[str, float]:
        """Return the numbers that persist between steps, to save in checkpoints; none by default."""
        return {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:  # noqa: ARG002
        """Restore the numbers from :meth:`state_dict`."""
        return
