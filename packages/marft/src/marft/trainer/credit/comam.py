"""Agents with rewards of their own and an adaptive share of the global one (after CoMAM, arXiv 2603.12631).

The paper weighs an agent's share of the global reward by how consistently its local reward ranks a group's episodes
with the global one. Of the function that makes a weight of that we know its idea alone. This is OUR READING, not a
quotation: a measure of ``consistency``, 0 where it is negative, for each agent by itself. Where an agent's local reward
is the same throughout the group there is nothing to rank, and the weight is ``fallback_weight``: an agent without a
signal of its own is judged by the team's. Where the global reward is the same throughout, no weight of it tells
attempts apart; such groups are in no metric of weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from marft.config.parts import CreditPart
from marft.config.settings import NotNegative, did_you_mean
from marft.rewards.groups import EQUAL, compare, members
from marft.rewards.shaping import local_rewards
from marft.trainer.credit.consistency import CONSISTENCIES, Consistency
from marft.trainer.credit.returns import agent_costs, group_names
from marft.trainer.interfaces import CreditInputs, Credits, Floats


class CoMAM(CreditPart):
    """``local_i + w_i · global``, compared over the trajectories of agent i at a task."""

    grouped_by: ClassVar[Literal["task", ""]] = "task"
    ranks_own: ClassVar[bool] = True

    scale: bool = True  # divide by the deviation
    # what w_i is, where it is not negative: "spearman" (ρ), "kendall" (τ_b) or "ndcg" of the two rewards in the group
    consistency: Consistency = "spearman"
    fallback_weight: NotNegative = 1.0  # w_i of an agent whose local reward is the same throughout its group
    fixed_weights: dict[str, NotNegative] = {}  # w_i of these roles, whatever groups say; 0: its own reward alone

    @property
    def by_agent(self) -> bool:
        """Rewards of its own and the team's, and nobody else's."""
        return True

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Roles of fixed weights that the team lacks."""
        for role in self.fixed_weights:
            if role not in roles:
                yield f"algorithm.credit.fixed_weights: no agent is called {role!r}{did_you_mean(role, roles)}"

    def assign(self, inputs: CreditInputs) -> Credits:
        """The team's and the agent's own rewards, weighed by how they go together, against the group's."""
        rows: list[tuple[int, str, float, float, float]] = []  # episode, agent, local, global, cost
        for number, (episode, costs) in enumerate(zip(inputs.episodes, agent_costs(inputs), strict=True)):
            local = local_rewards(episode)
            rows += [(number, agent, local.get(agent, 0.0), episode.total_reward, c) for agent, c in costs.items()]
        keys = [(inputs.episodes[number].task.id, agent) for number, agent, *_ in rows]
        mine, whole, cost = (np.array([row[column] for row in rows]) for column in (2, 3, 4))
        weights, found = np.zeros(len(rows)), []
        for indices in members(keys):
            weighed = self._weighed(keys[indices[0]][1], mine[indices], whole[indices])
            weights[indices] = weighed.weight
            found.append(weighed)
        advantages, metrics = compare(mine + weights * whole - cost, keys, scale=self.scale, costs=cost)
        metrics |= weight_metrics(found)
        by_row = {row[:2]: advantage for row, advantage in zip(rows, advantages, strict=True)}
        by_action = [by_row[n, a.agent] for n, episode in enumerate(inputs.episodes) for a in episode.actions]
        groups = group_names(inputs, lambda episode, action: [episode.task.id, action.agent])
        return Credits(inputs.spread(np.array(by_action)), groups=groups, metrics=metrics)

    def _weighed(self, agent: str, local: Floats, whole: Floats) -> Weighed:
        """The weight of the global reward in one group of an agent."""
        silent, told = bool(np.ptp(local) < EQUAL), bool(np.ptp(whole) >= EQUAL)
        if agent in self.fixed_weights:
            return Weighed(agent, self.fixed_weights[agent], silent, False, told)
        if silent:
            return Weighed(agent, self.fallback_weight, silent, True, told)
        return Weighed(agent, max(0.0, CONSISTENCIES[self.consistency](local, whole)), silent, False, told)


class Weighed(NamedTuple):
    """The weight of the global reward in one group of an agent.

    Args:
        silent: the local reward is the same throughout.
        fallen_back: the weight is the fallback's.
        told: the global reward tells attempts apart, so that its weight matters.
    """

    agent: str
    weight: float
    silent: bool
    fallen_back: bool
    told: bool


def weight_metrics(groups: Sequence[Weighed]) -> dict[str, float]:
    """Mean weights and the share of groups that fell back, of all agents and of each, over the groups in which the
    global reward tells attempts apart; nothing of those that have none.

    >>> weight_metrics([Weighed("a", 0.5, False, False, True), Weighed("a", 1.0, True, True, False)])["global_weight"]
    0.5
    """
    metrics = {"groups_without_local_signal": float(sum(group.silent for group in groups))}
    by_prefix: dict[str, list[Weighed]] = {}
    for group in groups:
        for prefix in ("", f"agents/{group.agent}/") if group.told else ():
            by_prefix.setdefault(prefix, []).append(group)
    for prefix, some in by_prefix.items():
        metrics[f"{prefix}global_weight"] = sum(group.weight for group in some) / len(some)
        metrics[f"{prefix}fallback_fraction"] = sum(group.fallen_back for group in some) / len(some)
    return metrics
