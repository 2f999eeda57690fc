"""What credit is assigned from, and what it comes to. A decision is (k, j): token j of action k of an episode; j = 0 alone
at action level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from marft.common.types import Action, Episode
from tests.dense.rewards import Pay

EQUAL = EPSILON = 1e-8
Rows = list[list[float]]  # by action, then by decision


@dataclass
class Case:
    """An episode, and everything that it is judged by."""

    episode: Episode
    pays: list[Pay]  # of each environment step
    costs: Rows
    trains: list[bool]  # by action: whether its policy is trained
    values: Rows = field(default_factory=list)  # V at every decision
    final: Mapping[str, float] = field(default_factory=dict)  # V of the final state, as each agent's head sees it
    ratios: list[float] = field(default_factory=list)  # of each action's step: how far earlier policies have moved

    @property
    def actions(self) -> Sequence[Action]:
        return self.episode.actions

    def cost(self, k: int) -> float:
        return sum(self.costs[k])

    def stop_checker(self, k: int, chain: str) -> float:
        """What the end is worth to the chain whose last decision is k: to the agent that would decide next in it."""
        if chain == "joint" or not self.final:
            return next(iter(self.final.values()), 0.0)
        agent = self.actions[k if chain == "agent" else min(roots_of(self.actions, k))].agent
        return self.final.get(agent, next(iter(self.final.values())))

    def mean_ending(self) -> float:
        """What the end is worth on average to those who decided in the last step, each once."""
        if not self.final:
            return 0.0
        speakers = {action.agent for action in self.actions if action.step == self.actions[-1].step}
        return sum(self.final[agent] for agent in speakers) / len(speakers)

    def zeros(self) -> Rows:
        return [[0.0] * len(row) for row in self.costs]

    def spread(self, numbers: Sequence[float]) -> Rows:
        """One number an action → one a decision."""
        return [[number] * len(row) for number, row in zip(numbers, self.costs, strict=True)]


@dataclass
class Judged:
    """Of one episode. An action of which ``trained`` is False only served to judge others."""

    advantages: Rows
    returns: Rows = field(default_factory=list)
    monte_carlo: Rows = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)


def roots_of(actions: Sequence[Action], k: int) -> set[int]:
    """Those of k's step that k depends on, directly or not, and that depend on nobody."""
    seen = [j for j in range(k) if actions[j].step == actions[k].step and actions[j].id in actions[k].sees]
    return set().union(*(roots_of(actions, j) for j in seen)) if seen else {k}
